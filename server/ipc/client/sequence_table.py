"""Table of the sequences that were sent to workers and have not ended. Routes the events of workers to their calls."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from server.ipc.client.call import Call
from server.ipc.client.deliveries import Deliveries
from server.ipc.client.dispatch import Dispatcher
from server.ipc.client.observer import Observer
from server.ipc.client.open_sequence import OpenSequence, Sequences
from server.ipc.client.queue import Queue
from server.ipc.client.worker_state import WorkerState
from server.ipc.wire.encode_messages import Encoded
from server.ipc.wire.generate_messages import Finished, PromptScored, Tokens
from server.ipc.wire.step_messages import Failed, StepOutput

EventT = TypeVar("EventT", PromptScored, Tokens, Encoded, Finished, Failed)
TokenCounts = dict[tuple[str, int, float | None], int]
"""Number of sequences by model, number of new tokens, and time of the previous tokens (None for first tokens)."""


class SequenceTable:
    """Passes the events of each step to the calls, and subtracts started rows and items from the queue.

    An event is dropped if its sequence is not assigned to the worker that sent the event: the sequence was aborted, or
    sent to another worker.

    by_id: the sequences, by their ids.
    dispatcher: counts the sequences of each worker.
    queue: counts the rows and items that wait for their first step.
    observer: receives counts for the metrics.
    """

    def __init__(self, dispatcher: Dispatcher, queue: Queue, observer: Observer) -> None:
        self.by_id: Sequences = {}
        self._dispatcher = dispatcher
        self._queue = queue
        self._observer = observer
        self._deliveries = Deliveries()

    def on_computing(self, worker: WorkerState) -> None:
        """Record that a worker is computing a long step.

        This counts as progress of the requests in its last `StepOutput.computing`.
        """
        now = worker.last_message_seconds = worker.last_computed_seconds = time.monotonic()
        for sequence_id in worker.computing:
            sequence = self._of(worker, sequence_id)
            if sequence is not None:
                sequence.call.computing(sequence_id)
                sequence.call.progressed(now)

    def on_output(self, output: StepOutput, worker: WorkerState) -> None:
        """Pass on the events of one step of a worker. Each call receives all of its events at once.

        Calls with a first token, or with a result of an `Encode`, come before the others.
        """
        now = worker.last_message_seconds = worker.last_computed_seconds = time.monotonic()
        worker.computing = output.computing
        calls: dict[Call, None] = {}
        urgent: dict[Call, None] = {}
        token_counts: TokenCounts = {}
        for sequence_id in output.computing:
            sequence = self._of(worker, sequence_id)
            if sequence is not None:
                sequence.call.computing(sequence_id)
                sequence.call.stepped(output.began, output.sent)
                sequence.call.progressed(now)
        for scored, sequence in self._with_sequences(worker, output.prompts):
            sequence.message = None
            sequence.call.computing(scored.sequence_id)
            sequence.call.put(sequence.index, scored)
            calls[sequence.call] = None
        for tokens, sequence in self._with_sequences(worker, output.tokens):
            if not sequence.started:
                self._first_output(sequence, now)
                urgent[sequence.call] = None
                sequence.message = None
                sequence.call.computing(tokens.sequence_id)
            _count_tokens(sequence, len(tokens.token_ids), now, token_counts)
            sequence.call.put(sequence.index, tokens)
            calls[sequence.call] = None
        for encoded, sequence in self._with_sequences(worker, output.encoded):
            self._answered(encoded, sequence, now)
            calls[sequence.call] = urgent[sequence.call] = None
        for finished, sequence in self._with_sequences(worker, output.finished):
            self._first_output(sequence, now)
            generated = len(finished.hypotheses[0].token_ids) if finished.hypotheses else 0
            _count_tokens(sequence, generated - sequence.seen_tokens, now, token_counts)
            sequence.call.completion_tokens += sum(len(other.token_ids) for other in finished.hypotheses[1:])
            self._end(finished.sequence_id, sequence, finished)
            sequence.call.put(sequence.index, finished)
            calls[sequence.call] = None
        for failed, sequence in self._with_sequences(worker, output.failed):
            self._end(failed.sequence_id, sequence, failed)
            sequence.call.put(sequence.index, failed)
            calls[sequence.call] = None
        for (model, count, earlier), sequences in token_counts.items():
            self._observer.on_tokens(model, count, None if earlier is None else now - earlier, sequences)
        for call in calls:
            call.stepped(output.began, output.sent)
            call.progressed(now)
        self._deliveries.add(calls, urgent)

    def last_computed(self, sequence_ids: Iterable[int]) -> float:
        """Latest time at which one of the workers that have the sequences computed something.

        Returns the present time if one of the sequences waits for a worker, or if none was sent.
        """
        found = [self.by_id[sequence_id].worker for sequence_id in sequence_ids if sequence_id in self.by_id]
        times = [time.monotonic() if worker is None else worker.last_computed_seconds for worker in found]
        return max(times, default=time.monotonic())

    def leave_queue(self, sequence: OpenSequence) -> None:
        """Subtract all waiting rows or items of a sequence from the queue."""
        self._leave_queue(sequence, sequence.waiting_sequences, sequence.waiting_tokens)

    def _with_sequences(self, worker: WorkerState, events: Iterable[EventT]) -> Iterator[tuple[EventT, OpenSequence]]:
        """The events whose sequences are open and assigned to the worker, each with its sequence."""
        for event in events:
            sequence = self._of(worker, event.sequence_id)
            if sequence is not None:
                yield event, sequence

    def _of(self, worker: WorkerState, sequence_id: int) -> OpenSequence | None:
        """The open sequence with an id if it is assigned to the worker; else None."""
        sequence = self.by_id.get(sequence_id)
        return sequence if sequence is not None and sequence.worker is worker else None

    def _answered(self, encoded: Encoded, sequence: OpenSequence, now: float) -> None:
        """Pass the result of one item of an `Encode` to its call, and update the counts.

        now: seconds of `time.monotonic()`.
        """
        self._first_output(sequence, now)
        sequence.unanswered.discard(encoded.index)
        self._leave_queue(sequence, 1, sequence.sizes[encoded.index])
        if sequence.unanswered:
            sequence.call.waiting(encoded.sequence_id)
        else:
            self._end(encoded.sequence_id, sequence, encoded)
        place = sequence.places[encoded.index]
        if place != encoded.index:
            encoded = msgspec.structs.replace(encoded, index=place)
        sequence.call.put(0, encoded)

    def _first_output(self, sequence: OpenSequence, now: float) -> None:
        if not sequence.started:
            sequence.started = True
            self._dispatcher.started(sequence)
            if len(sequence.unanswered) == 1:
                self.leave_queue(sequence)
            self._observer.on_first_output(sequence.model, now - sequence.call.submitted)

    def _leave_queue(self, sequence: OpenSequence, sequences: int, tokens: int) -> None:
        """Subtract rows or items of a sequence, and their tokens, from the queue, because they no longer wait."""
        sequences, tokens = min(sequences, sequence.waiting_sequences), min(tokens, sequence.waiting_tokens)
        if sequences:
            sequence.waiting_sequences -= sequences
            sequence.waiting_tokens -= tokens
            sequence.submission.waiting_sequences -= sequences
            sequence.submission.waiting_tokens -= tokens
            self._dispatcher.waits_no_longer(sequence, sequences)
            self._queue.leave(sequences, tokens)

    def _end(self, sequence_id: int, sequence: OpenSequence, event: Finished | Encoded | Failed) -> None:
        self.leave_queue(sequence)
        del self.by_id[sequence_id]
        self._dispatcher.ended(sequence)
        sequence.call.ended(sequence_id, event)
        self._observer.on_finished(sequence.model, event)


def _count_tokens(sequence: OpenSequence, count: int, now: float, token_counts: TokenCounts) -> None:
    """Count one step's new tokens of a sequence in `token_counts`, and remember when they arrived.

    Sequences share an entry if they have the same model, number of new tokens and time of previous tokens.
    """
    if count > 0:
        key = sequence.model, count, sequence.last_seconds
        token_counts[key] = token_counts.get(key, 0) + 1
        sequence.seen_tokens += count
        sequence.call.completion_tokens += count
        sequence.last_seconds = now
