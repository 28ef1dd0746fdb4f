"""The HTTP process's client of the workers: admits requests, sends each to a worker, and routes events to their calls.

If a worker is lost, its sequences without any output are sent again once: to another worker, or to the next worker that
becomes ready. Its other sequences fail. Imports no HTTP and no text code.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager

import msgspec

from server.errors import NotReady, RequestTooLarge
from server.ipc.client.call import Call
from server.ipc.client.coalescing import Send
from server.ipc.client.dispatch import Dispatcher
from server.ipc.client.model_loads import ModelLoads
from server.ipc.client.observer import Observer
from server.ipc.client.open_sequence import OpenSequence, messages_to_repeat, open_sequences
from server.ipc.client.placement import num_pieces
from server.ipc.client.queue import Queue
from server.ipc.client.sequence_table import SequenceTable
from server.ipc.client.submission import Submission, fits, split
from server.ipc.wire.descriptions import Device, ModelInfo
from server.ipc.wire.encode_messages import Encode
from server.ipc.wire.fit import check_rows, sequence_sizes
from server.ipc.wire.generate_messages import Generate, Vocabulary
from server.ipc.wire.model_messages import ModelAnswer
from server.ipc.wire.params import SequenceTrie
from server.ipc.wire.stats_sum import with_others, without_increments
from server.ipc.wire.step_messages import FailureCode, Stats, StepOutput
from server.ipc.wire.worker_messages import PreparingKernels, Progress

ROWS_PER_TURN = 128
"""Number of rows that are sent or dropped in one iteration of the event loop. This takes about 2 ms."""


class EngineClient:
    """Sends requests to the workers. The number of sequences and tokens that wait for their first step is limited.

    A large request is sent in parts. A part enters the queue when earlier parts have left room
    (`server.ipc.client.submission`).

    observer: receives counts for the metrics.
    max_queue_requests, max_queue_tokens: largest numbers of waiting sequences and of their tokens, over all models.
        Each row of a `Generate` and each item of an `Encode` counts as a sequence.
    coalesce_seconds: longest time that a request to an idle worker is held back for other requests of the same burst.
    stale_seconds: a worker that sent no message for this time gets no requests while other workers send messages.
    models: descriptions of the models and adapters that workers have, by name.
    """

    def __init__(
        self,
        observer: Observer,
        max_queue_requests: int,
        max_queue_tokens: int,
        coalesce_seconds: float = 0.0,
        stale_seconds: float = 2.0,
    ) -> None:
        self.models: dict[str, ModelInfo] = {}
        self.device: Device = "cpu"
        self.queue = Queue(max_queue_requests, max_queue_tokens)
        self._observer = observer
        self._dispatcher = Dispatcher(coalesce_seconds, stale_seconds)
        self.loads = ModelLoads(self._dispatcher, self._on_loaded)
        self._sequences = SequenceTable(self._dispatcher, self.queue, observer)
        self._unsent: dict[Call, Submission] = {}
        self._entered: dict[Call, Submission] = {}
        """Requests that are counted in the queue as a whole, and are sent over several iterations of the event loop."""
        self._sends_parts_soon = self._sends_entered_soon = False
        self._dropped: deque[tuple[int, OpenSequence]] = deque()
        self._ids = itertools.count(1)

    @property
    def connected(self) -> bool:
        """Whether a worker that accepts requests is ready."""
        return bool(self._dispatcher.accepting)

    @property
    def num_open_sequences(self) -> int:
        """Number of sequences that were sent to a worker and have not ended."""
        return len(self._sequences.by_id)

    def next_id(self) -> int:
        """A new id for a sequence."""
        return next(self._ids)

    def add_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Send the bytes of a model's tokens to every worker that has the model, or gets it later, once each."""
        self._dispatcher.add_vocabulary(vocabulary)

    async def store_sequences(self, model: str, trie: SequenceTrie) -> int:
        """Send a set of allowed sequences to every worker that has a model. Returns the id of the set."""
        return await self._dispatcher.sequences.add(model, trie)

    def forget_sequences(self, set_id: int) -> None:
        """Drop a stored set of allowed sequences. No request in progress may name the set."""
        self._dispatcher.sequences.forget(set_id)

    def preparing(self) -> AbstractContextManager[None]:
        """Context manager around the tokenization of a request. Requests to an idle worker wait until it exits."""
        return self._dispatcher.preparing()

    def submit(self, call: Call, message: Generate | Encode) -> list[int]:
        """Admit a call's message and send it, or its first part.

        Returns the ids of the rows of a `Generate`, or of the parts of an `Encode`. A message without rows or items is
        not sent.

        Raises:
            NotReady: no worker has the model, and the call does not wait for one (`Call.awaits_models`).
            RequestTooLarge: a sequence exceeds the queue or the KV pools even on an idle server.
            Overloaded: the queue is full.
        """
        workers = self._dispatcher.serving(message.model)
        if not workers and not (call.awaits_models and message.model in self.models):
            raise NotReady("the engine is starting; try again soon", retry_after=2)
        info = self.models[message.model]
        sizes = sequence_sizes(message, info)
        if max(sizes, default=0) > self.queue.max_tokens:
            raise RequestTooLarge(
                f"a text of {max(sizes):,} tokens; the limit is {self.queue.max_tokens:,} (--max-queue-tokens)"
            )
        if isinstance(message, Generate):
            check_rows(info, message, sizes)
        if not sizes:
            return []
        share = self.queue.request_share
        is_within_share = fits(sizes, share)
        has_many_rows = isinstance(message, Generate) and len(sizes) > 2 * ROWS_PER_TURN
        if has_many_rows:
            # Half of this is one part.
            share = min(share[0], 2 * ROWS_PER_TURN), share[1]
        parts = split(message, sizes, share, self.next_id, num_pieces(len(workers), message, sizes))
        submission = Submission(call, parts)
        if is_within_share or workers:
            # A request within its share enters the queue as a whole, even if several workers share it.
            entering = sizes if is_within_share else parts[0].sizes
            self.queue.enter(len(entering), sum(entering))
        if workers:
            for _ in range(len(parts) if is_within_share and not has_many_rows else 1):
                self._send(submission)
        if parts and is_within_share:
            self._entered[call] = submission
            self._send_entered_soon()
        elif parts:
            self._unsent[call] = submission
            self._send_parts()
        return submission.sequence_ids

    def _send_entered(self) -> None:
        """Send the next part of one of the requests that are already counted in the queue as a whole."""
        self._sends_entered_soon = False
        call = next(iter(self._entered), None)
        if call is None:
            return
        submission = self._entered.pop(call)
        if self._serves(submission):
            self._send(submission)
        if submission.parts:
            self._entered[call] = submission
        self._send_entered_soon()

    def _send_entered_soon(self) -> None:
        """Call `_send_entered` in the next iteration of the event loop, if a worker has one of the models."""
        if not self._sends_entered_soon and any(map(self._serves, self._entered.values())):
            self._sends_entered_soon = True
            asyncio.get_running_loop().call_soon(self._send_entered)

    def _serves(self, submission: Submission) -> bool:
        """Whether a worker has the model of a submission."""
        return bool(self._dispatcher.serving(submission.model))

    def _send(self, submission: Submission) -> None:
        """Send the next part of a submission. The part is already counted in the queue."""
        part = submission.parts.popleft()
        limits = submission.call.limits
        message = msgspec.structs.replace(
            part.message(),
            call_id=submission.sequence_ids[0],
            key=submission.call.cache_salt,
            deadline=limits.deadline,
            start_deadline=limits.start_deadline,
        )
        sequences = open_sequences(submission, part, message)
        self._sequences.by_id |= sequences
        self._observer.on_admitted(message.model, sum(part.sizes))
        submission.waiting_sequences += len(part.sizes)
        submission.waiting_tokens += sum(part.sizes)
        self._dispatcher.post(message, sequences, self.models[message.model].block_size)

    def _send_parts(self) -> None:
        """Send further parts of large requests, as far as the queue and the limit for one request have room.

        After `ROWS_PER_TURN` sequences, the next iteration of the event loop continues.
        """
        if not (self._unsent and self.connected):
            return
        left = ROWS_PER_TURN
        for call, submission in list(self._unsent.items()):
            while submission.parts and self._serves(submission) and self._has_room(submission):
                if left <= 0:
                    self._send_parts_soon()
                    return
                part = submission.parts[0]
                left -= len(part.sizes)
                self.queue.enter(len(part.sizes), sum(part.sizes))
                self._send(submission)
                # The other submissions come first when the queue has room again.
                del self._unsent[call]
                self._unsent[call] = submission
            if not submission.parts:
                del self._unsent[call]

    def _send_parts_soon(self) -> None:
        """Send further parts of large requests in the next iteration of the event loop."""

        def send() -> None:
            self._sends_parts_soon = False
            self._send_parts()

        if not self._sends_parts_soon:
            self._sends_parts_soon = True
            asyncio.get_running_loop().call_soon(send)

    def _has_room(self, submission: Submission) -> bool:
        sequences, tokens = len(submission.parts[0].sizes), sum(submission.parts[0].sizes)
        max_sequences, max_tokens = self.queue.request_share
        own_room = not submission.waiting_sequences or (
            submission.waiting_sequences + sequences <= max_sequences
            and submission.waiting_tokens + tokens <= max_tokens
        )
        return own_room and self.queue.has_room(sequences, tokens)

    def withdraw(self, call: Call) -> None:
        """Forget the parts of a call's message that were not sent. If the queue counts them, they leave the queue."""
        self._unsent.pop(call, None)
        entered = self._entered.pop(call, None)
        for part in entered.parts if entered is not None else ():
            self.queue.leave(len(part.sizes), sum(part.sizes))

    def is_sent(self, sequence_id: int) -> bool:
        """Whether a sequence was sent and has not ended."""
        return sequence_id in self._sequences.by_id

    def last_computed(self, sequence_ids: Iterable[int]) -> float:
        """Latest time at which one of the workers that have the sequences computed something.

        Returns the present time if one of the sequences waits for a worker, or if none was sent.
        """
        return self._sequences.last_computed(sequence_ids)

    def abort(self, sequence_id: int) -> None:
        """Tell the worker to drop a sequence. Events that arrive afterwards are ignored."""
        self.abort_all([sequence_id])

    def abort_all(self, sequence_ids: Sequence[int]) -> None:
        """Tell the workers to drop sequences. Events that arrive afterwards are ignored.

        More than `ROWS_PER_TURN` sequences are dropped over several iterations of the event loop.
        """
        found = ((sequence_id, self._sequences.by_id.pop(sequence_id, None)) for sequence_id in sequence_ids)
        dropped = [(sequence_id, sequence) for sequence_id, sequence in found if sequence is not None]
        if len(dropped) <= ROWS_PER_TURN and not self._dropped:
            self._drop(dropped)
        elif dropped:
            if not self._dropped:
                asyncio.get_running_loop().call_soon(self._drop_next)
            self._dropped += dropped

    def _drop_next(self) -> None:
        """Tell the workers to drop the next `ROWS_PER_TURN` sequences of `abort_all`.

        Their events are already ignored.
        """
        self._drop([self._dropped.popleft() for _ in range(min(ROWS_PER_TURN, len(self._dropped)))])
        if self._dropped:
            asyncio.get_running_loop().call_soon(self._drop_next)

    def _drop(self, sequences: Sequence[tuple[int, OpenSequence]]) -> None:
        for sequence_id, sequence in sequences:
            self._sequences.leave_queue(sequence)
            self._dispatcher.abort(sequence_id, sequence)
        self._send_parts()

    def cancelled(self, sequence_ids: Collection[int]) -> None:
        """Count the given sequences as cancelled in the metrics, because their client has disconnected."""
        found = map(self._sequences.by_id.get, sequence_ids)
        running = sum(sequence is not None and sequence.started for sequence in found)
        self._observer.on_cancelled("running", running)
        self._observer.on_cancelled("waiting", len(sequence_ids) - running)

    def completed(self, sequence_id: int) -> None:
        """Count a sequence as completed in the metrics, because this process has ended it at a stop string."""
        sequence = self._sequences.by_id.get(sequence_id)
        if sequence is not None:
            self._observer.on_finished(sequence.model, None)

    def fail_all(self, code: FailureCode, message: str) -> None:
        """End every open sequence with a failure, because no worker can be started or the grace time is over."""
        calls = [*self._unsent, *self._entered, *(sequence.call for sequence in self._sequences.by_id.values())]
        self._unsent.clear()
        for call in dict.fromkeys(calls):
            call.fail(code, message)

    # --------------------------------------------------------------------------------------- from the worker pool

    def on_progress(self, progress: Progress | PreparingKernels) -> None:
        self._observer.on_progress(progress)

    def on_ready(self, models: list[ModelInfo], device: Device, send: Send, epoch: int = 1) -> None:
        """Add a worker that is ready. Sequences of lost workers, which wait for a worker, are sent again.

        models: descriptions of the worker's models. send: sends messages to the worker.
        epoch: unique number of the worker process, which its messages carry.
        """
        self.device = device
        worker = self._dispatcher.add(epoch, send, [info.name for info in models])
        self._on_loaded(models)
        self.loads.on_ready(worker)

    def on_model(self, answer: ModelAnswer) -> None:
        """Handle an answer of a worker: it has measured, loaded or dropped a model, or could not."""
        self.loads.on_answer(answer)

    def _on_loaded(self, models: list[ModelInfo]) -> None:
        """Record that a worker has these models, and send sequences that wait for the models."""
        self.models |= {info.name: info for info in models}
        self._observer.on_ready(models, self.device)
        self._repeat()
        self._send_parts()
        self._send_entered_soon()

    def forget_model(self, name: str, message: str) -> None:
        """Forget a model that no worker has any more, and its adapters. Its open sequences fail.

        message: text of the failures, for the clients.
        """
        names = [info.name for info in self.models.values() if name in (info.name, info.adapter_of)]
        for known in names:
            del self.models[known]
        submissions = [*self._unsent.values(), *self._entered.values()]
        calls = [submission.call for submission in submissions if submission.model in names]
        calls += [sequence.call for sequence in self._sequences.by_id.values() if sequence.model in names]
        for call in dict.fromkeys(calls):
            call.fail("not_ready", message)

    async def restored(self, epoch: int) -> None:
        """Wait until a new worker has the models that other workers have loaded on demand, or could not load them."""
        await self.loads.restored(epoch)

    def retire(self, epoch: int) -> None:
        """Send no more requests to a worker, which is about to be stopped."""
        if epoch in self._dispatcher.workers:
            self._dispatcher.workers[epoch].is_retired = True

    def open_on(self, epoch: int) -> int:
        """Number of sequences of a worker that have not ended; 0 for an unknown worker."""
        worker = self._dispatcher.workers.get(epoch)
        return worker.open if worker is not None else 0

    def on_lost(self, epoch: int = 1) -> None:
        """Handle the failure of a worker. Its sequences without any output are sent again once; the others fail."""
        self._observer.on_lost()
        self._leave(epoch, "the engine stopped working on this request")

    def on_stopped(self, epoch: int) -> None:
        """Handle the stop of a retired worker, as `on_lost` does, but without counting a failure."""
        self._leave(epoch, "the engine was restarted before this request ended")

    def _leave(self, epoch: int, message: str) -> None:
        """Forget a worker. Its sequences without any output are sent again; its other sequences fail with `message`.

        A sequence that was already sent again once fails too.
        """
        worker = self._dispatcher.workers.pop(epoch, None)
        if worker is None:
            return
        self.loads.on_lost(epoch)
        stranded = {key: sequence for key, sequence in self._sequences.by_id.items() if sequence.worker is worker}
        failing = [other.call for other in stranded.values() if other.message is None or other.was_moved]
        for sequence_id, sequence in stranded.items():
            sequence.call.waiting(sequence_id)
            sequence.worker = None
            sequence.was_moved = True
        for call in dict.fromkeys(failing):
            call.fail("engine_error", message)
        for other in self._dispatcher.workers.values():
            if other.stats is not None:
                self.on_stats(without_increments(other.stats))
                break
        self._repeat()

    def _repeat(self) -> None:
        """Send the sequences that wait for a worker again.

        Sequences for whose model there is no worker continue to wait.
        """
        if self.connected:
            lost = [
                (sequence_id, sequence)
                for sequence_id, sequence in self._sequences.by_id.items()
                if sequence.worker is None and self._dispatcher.serving(sequence.model)
            ]
            for message, sequences in messages_to_repeat(lost):
                self._dispatcher.post(message, sequences, self.models[message.model].block_size)

    def on_stats(self, stats: Stats) -> None:
        """Record statistics of one worker.

        The observer receives the sum over all workers. Sequences that were not sent yet count as waiting.
        """
        worker = self._dispatcher.workers.get(stats.epoch)
        if worker is None:
            return
        worker.stats = stats
        worker.last_message_seconds = time.monotonic()
        others = (other.stats for other in self._dispatcher.workers.values() if other is not worker)
        stats = with_others(stats, [other for other in others if other is not None])
        unsent = [part.sizes for submission in self._unsent.values() for part in submission.parts]
        if unsent:
            waiting = stats.waiting + sum(map(len, unsent))
            tokens = stats.queue_tokens + sum(map(sum, unsent))
            stats = msgspec.structs.replace(stats, waiting=waiting, queue_tokens=tokens)
        self._observer.on_stats(stats)

    def on_computing(self, epoch: int) -> None:
        """Record that a worker is computing a long step, which counts as progress of the requests in that step."""
        worker = self._dispatcher.workers.get(epoch)
        if worker is not None:
            self._sequences.on_computing(worker)

    def on_output(self, output: StepOutput) -> None:
        """Pass on the events of a step, and send parts of large requests if the queue has room again."""
        worker = self._dispatcher.workers.get(output.epoch)
        if worker is not None:
            self._sequences.on_output(output, worker)
            self._send_parts()
