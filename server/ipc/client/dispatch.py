"""Sends messages to the workers that are ready, and counts the sequences of each worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from server.ipc.client.coalescing import MessageCoalescer, Send
from server.ipc.client.open_sequence import OpenSequence, Sequences
from server.ipc.client.placement import Placement
from server.ipc.client.sequence_delivery import SequenceDelivery
from server.ipc.client.worker_state import WorkerState
from server.ipc.wire.encode_messages import Encode
from server.ipc.wire.generate_messages import Generate, Vocabulary
from server.ipc.wire.step_messages import Abort


class Dispatcher:
    """Sends messages to the ready workers.

    workers: the ready workers, by epoch.
    coalesce_seconds: longest time that a request to an idle worker is held back for other requests of the same burst.
    stale_seconds: a worker that sent no message for this time gets no requests while other workers send messages.
    """

    def __init__(self, coalesce_seconds: float, stale_seconds: float) -> None:
        self.workers: dict[int, WorkerState] = {}
        self._coalesce_seconds = coalesce_seconds
        self._placement = Placement(stale_seconds)
        self._vocabularies: dict[str, Vocabulary] = {}
        self.sequences = SequenceDelivery(self.workers)

    @property
    def accepting(self) -> list[WorkerState]:
        """The workers that get new requests: all ready workers that are not retired."""
        return [worker for worker in self.workers.values() if not worker.is_retired]

    def serving(self, model: str) -> list[WorkerState]:
        """The workers that get new requests for a model or adapter. model: name of the model or adapter."""
        return [worker for worker in self.accepting if model in worker.models]

    def add(self, epoch: int, send: Send, models: Iterable[str]) -> WorkerState:
        """Add a worker that has become ready.

        epoch: unique number of the worker process, which its messages carry. send: sends messages to the worker.
        models: names of the models and adapters that the worker has.
        """
        worker = self.workers[epoch] = WorkerState(epoch, MessageCoalescer(send, self._coalesce_seconds))
        worker.models.update(models)
        self.send_kept(worker, models)
        return worker

    def send_kept(self, worker: WorkerState, models: Iterable[str]) -> None:
        """Send the vocabularies and stored sets of some models to a worker that has loaded these models."""
        for model in models:
            if model in self._vocabularies:
                worker.outbox.post(self._vocabularies[model], idle=False)
            self.sequences.send_to(worker, model)

    def forget_vocabulary(self, model: str) -> None:
        """Forget the `Vocabulary` message of a model that is unloaded."""
        self._vocabularies.pop(model, None)

    def add_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Send the bytes of a model's tokens to every worker that has the model or gets it later, once each."""
        if vocabulary.model not in self._vocabularies:
            self._vocabularies[vocabulary.model] = vocabulary
            for worker in self.workers.values():
                if vocabulary.model in worker.models:
                    worker.outbox.post(vocabulary, idle=False)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Context manager around the tokenization of a request. Requests to idle workers wait until it exits."""
        outboxes = [worker.outbox for worker in self.accepting]
        for outbox in outboxes:
            outbox.preparing += 1
        try:
            yield
        finally:
            for outbox in outboxes:
                outbox.preparing -= 1

    def post(self, message: Generate | Encode, sequences: Sequences, block_size: int) -> None:
        """Send a message to one of the workers that have its model. There must be such a worker.

        sequences: the sequences of the message, by id. block_size: tokens in a KV block of the model.
        """
        worker = self._placement.choose(self.serving(message.model), message, block_size)
        idle = not worker.open
        for sequence in sequences.values():
            sequence.worker = worker
            worker.open += 1
            worker.waiting += sequence.waiting_sequences
            worker.running += sequence.started
        worker.outbox.post(message, idle)

    def abort(self, sequence_id: int, sequence: OpenSequence) -> None:
        """Tell the worker of a sequence to drop the sequence. Does nothing if the sequence waits for a worker."""
        if sequence.worker is not None:
            sequence.worker.outbox.post(Abort(sequence_id), idle=False)
            self.ended(sequence)

    def started(self, sequence: OpenSequence) -> None:
        """Count a sequence as running on its worker, because its first output has arrived."""
        if sequence.worker is not None:
            sequence.worker.running += 1

    def waits_no_longer(self, sequence: OpenSequence, count: int) -> None:
        """Count `count` rows or items of a sequence as no longer waiting at its worker."""
        if sequence.worker is not None:
            sequence.worker.waiting -= count

    def ended(self, sequence: OpenSequence) -> None:
        """Stop counting a sequence for its worker, which has ended it or will drop it."""
        if sequence.worker is not None:
            sequence.worker.open -= 1
            sequence.worker.running -= sequence.started
