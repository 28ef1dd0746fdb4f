"""Sends stored sets of allowed sequences to the workers. Every worker with the model of a set gets the set once.

A set of a million sequences has some 50 MB. It is sent in parts with pauses between them, so that neither this process
nor a worker is blocked for long.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from server.ipc.client.worker_state import WorkerState
from server.ipc.wire.generate_messages import ForgetSequences, SequencePart
from server.ipc.wire.params import SequenceTrie

PART_BYTES = 1 << 20
PAUSE_SECONDS = 0.002
"""Pause after each part. A worker takes less than this for a part."""


class _Set(NamedTuple):
    """A set of allowed sequences that all workers with its model have. model: name of the model."""

    model: str
    trie: SequenceTrie

    def parts(self, set_id: int) -> Iterator[SequencePart]:
        """The messages of the set, in order."""
        num_nodes = len(self.trie.ends)
        for array in (self.trie.tokens, self.trie.first_children, self.trie.ends):
            for start in range(0, len(array), PART_BYTES):
                yield SequencePart(set_id, self.model, num_nodes, array[start : start + PART_BYTES])


class SequenceDelivery:
    """The stored sets of allowed sequences of all models, and their delivery to the workers.

    workers: the workers that are ready, by epoch. Changed by the caller.
    """

    def __init__(self, workers: dict[int, WorkerState]) -> None:
        self._workers = workers
        self._sets: dict[int, _Set] = {}
        self._sending: list[tuple[str, set[WorkerState]]] = []
        """For each set that is being sent: its model, and the workers that have got all its parts so far."""
        self._ids = itertools.count(1)

    async def add(self, model: str, trie: SequenceTrie) -> int:
        """Send a set to every worker that has the model, and wait until all parts are sent.

        Returns the id of the set, by which requests may name it from now on.
        """
        set_id, found = next(self._ids), _Set(model, trie)
        complete = set(self._with(model))
        self._sending.append((model, complete))
        try:
            for part in found.parts(set_id):
                for worker in self._with(model):
                    if worker in complete:
                        worker.outbox.post(part, idle=False)
                await asyncio.sleep(PAUSE_SECONDS)
        except BaseException:
            self._post_forget(set_id, model)
            raise
        finally:
            self._sending.remove((model, complete))
        self._sets[set_id] = found
        for worker in self._with(model):
            if worker not in complete:
                self._send(worker, set_id)
        return set_id

    def forget(self, set_id: int) -> None:
        """Forget a set here, and tell the workers to drop it. No request may name it any more."""
        self._post_forget(set_id, self._sets.pop(set_id).model)

    def send_to(self, worker: WorkerState, model: str) -> None:
        """Send all sets of a model to a worker that has loaded the model.

        A set that is being sent to other workers is sent to this worker afterwards.
        """
        for own_model, complete in self._sending:
            if own_model == model:
                complete.discard(worker)
        for set_id, found in self._sets.items():
            if found.model == model:
                self._send(worker, set_id)

    def _send(self, worker: WorkerState, set_id: int) -> None:
        for part in self._sets[set_id].parts(set_id):
            worker.outbox.post(part, idle=False)

    def _post_forget(self, set_id: int, model: str) -> None:
        for worker in self._with(model):
            worker.outbox.post(ForgetSequences(set_id, model), idle=False)

    def _with(self, model: str) -> list[WorkerState]:
        """The workers that have a model, including workers that are about to be stopped."""
        return [worker for worker in self._workers.values() if model in worker.models]
