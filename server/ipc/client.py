"""The HTTP process's client of the worker: admits requests, sends them, and routes each event to its call.

Imports no HTTP and no text code.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from server.errors import NotReady, RequestTooLarge
from server.ipc.call import Call
from server.ipc.coalescing import MessageCoalescer, Send
from server.ipc.descriptions import Device, ModelInfo
from server.ipc.fit import check_fit, sequence_sizes
from server.ipc.messages import (
    Abort,
    Encode,
    Encoded,
    Failed,
    FailureCode,
    Finished,
    Generate,
    Progress,
    Stats,
    StepOutput,
    Vocabulary,
)
from server.ipc.observer import Observer
from server.ipc.queue import Queue
from server.ipc.submission import Part, Submission, split

TokenCounts = dict[tuple[str, int, float | None], int]
"""Number of sequences by model, number of new tokens, and time of their previous tokens (None: no previous ones)."""


@dataclass(slots=True)
class _Sequence:
    """A row, or an `Encode` with its items, that was sent to the worker and has not ended.

    submission: the message that it belongs to.
    index: index of the row, or of the first item, in the whole message.
    sizes: tokens of the row, or of each item.
    answers: number of results still to come before it ends; more than one for an `Encode` of several items.
    started: an output has arrived.
    waiting_sequences, waiting_tokens: what still counts in the queue: of a row until it starts, of an item until it is
        answered.
    """

    submission: Submission
    index: int
    model: str
    sizes: list[int]
    answers: int
    waiting_sequences: int
    waiting_tokens: int
    started: bool = False
    seen_tokens: int = 0
    last_seconds: float | None = None

    @property
    def call(self) -> Call:
        return self.submission.call


class EngineClient:
    """Sends requests to the worker. The number of sequences and tokens that wait for their first step is limited.

    A large request is sent in parts, which begin to wait as earlier ones start (`server.ipc.submission`).

    observer: receives counts for the metrics.
    max_queue_requests, max_queue_tokens: limits of `queue` over all models. Each item of an `Encode` counts.
    coalesce_seconds: longest time that a request to an idle worker is held back for others of the same burst.
    """

    def __init__(
        self, observer: Observer, max_queue_requests: int, max_queue_tokens: int, coalesce_seconds: float = 0.0
    ) -> None:
        self.models: dict[str, ModelInfo] = {}
        self.device: Device = "cpu"
        self.queue = Queue(max_queue_requests, max_queue_tokens)
        self._observer = observer
        self._coalesce_seconds = coalesce_seconds
        self._worker: MessageCoalescer | None = None
        self._sequences: dict[int, _Sequence] = {}
        self._unsent: dict[Call, Submission] = {}
        self._vocabularies: dict[str, Vocabulary] = {}
        self._ids = itertools.count(1)

    @property
    def connected(self) -> bool:
        """Whether a worker has loaded all models."""
        return self._worker is not None

    @property
    def open_requests(self) -> int:
        """Sequences that have not ended, without those of unsent parts."""
        return len(self._sequences)

    def next_id(self) -> int:
        """A new id for a sequence."""
        return next(self._ids)

    def add_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Send the bytes of a model's tokens to this worker and to every later one, once each."""
        if vocabulary.model not in self._vocabularies:
            self._vocabularies[vocabulary.model] = vocabulary
            if self._worker is not None:
                self._worker.post(vocabulary, idle=False)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Context manager around the tokenization of a request. Requests to an idle worker wait until it exits."""
        worker = self._worker
        if worker is None:
            yield
            return
        worker.preparing += 1
        try:
            yield
        finally:
            worker.preparing -= 1

    def submit(self, call: Call, message: Generate | Encode) -> list[int]:
        """Admit a call's request and send it, or its first part. Returns the ids of its rows, or of its parts.

        A `Generate` without rows is not sent.

        Raises:
            NotReady: no worker is ready.
            RequestTooLarge: a sequence exceeds the queue or the KV pools even on an idle server.
            Overloaded: the queue is full.
        """
        if self._worker is None:
            raise NotReady("the engine is starting; try again soon", retry_after=2)
        info = self.models[message.model]
        sizes = sequence_sizes(message, info)
        if max(sizes, default=0) > self.queue.max_tokens:
            raise RequestTooLarge(
                f"a text of {max(sizes):,} tokens; the limit is {self.queue.max_tokens:,} (--max-queue-tokens)"
            )
        if isinstance(message, Generate):
            for row in message.rows:
                check_fit(info, message, row)
        if not sizes:
            return []
        submission = Submission(call, split(message, sizes, self.queue.request_share, self.next_id))
        first = submission.parts[0]
        self.queue.enter(len(first.sizes), sum(first.sizes))
        self._send(submission)
        if submission.parts:
            self._unsent[call] = submission
            self._send_parts()
        return submission.request_ids

    def _send(self, submission: Submission) -> None:
        """Send the next part, which has entered the queue."""
        assert self._worker is not None
        part = submission.parts.popleft()
        message = msgspec.structs.replace(part.message, call_id=submission.request_ids[0])
        idle = not self._sequences
        for request_id, sequence in _sequences(submission, part):
            self._sequences[request_id] = sequence
            self._observer.on_admitted(message.model, sequence.waiting_tokens)
        submission.waiting_sequences += len(part.sizes)
        submission.waiting_tokens += sum(part.sizes)
        self._worker.post(message, idle)

    def _send_parts(self) -> None:
        """Send further parts of large requests, as far as the queue and the share of each request have room."""
        if self._worker is None:
            return
        for call, submission in list(self._unsent.items()):
            while submission.parts and self._has_room(submission):
                part = submission.parts[0]
                self.queue.enter(len(part.sizes), sum(part.sizes))
                self._send(submission)
                # The others come first when the queue has room again.
                del self._unsent[call]
                self._unsent[call] = submission
            if not submission.parts:
                del self._unsent[call]

    def _has_room(self, submission: Submission) -> bool:
        sequences, tokens = len(submission.parts[0].sizes), sum(submission.parts[0].sizes)
        max_sequences, max_tokens = self.queue.request_share
        own_room = not submission.waiting_sequences or (
            submission.waiting_sequences + sequences <= max_sequences
            and submission.waiting_tokens + tokens <= max_tokens
        )
        return own_room and self.queue.has_room(sequences, tokens)

    def withdraw(self, call: Call) -> None:
        """Forget the parts of a call that were not sent."""
        self._unsent.pop(call, None)

    def abort(self, request_id: int) -> None:
        """Tell the worker to drop a sequence. Events that arrive afterwards are ignored."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._leave_queue(sequence, sequence.waiting_sequences, sequence.waiting_tokens)
            if self._worker is not None:
                self._worker.post(Abort(request_id), idle=False)
            self._send_parts()

    def cancelled(self, request_id: int) -> None:
        """Count an open sequence whose client disconnected."""
        sequence = self._sequences.get(request_id)
        self._observer.on_cancelled("running" if sequence is not None and sequence.started else "waiting")

    def completed(self, request_id: int) -> None:
        """Count a sequence that a stop string ended in this process."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._observer.on_finished(sequence.model, None)

    def fail_all(self, code: FailureCode, message: str) -> None:
        """End every open sequence with a failure: the worker died, or the grace time is over."""
        calls = [*self._unsent, *(sequence.call for sequence in self._sequences.values())]
        self._unsent.clear()
        for call in dict.fromkeys(calls):
            call.fail(code, message)

    # ------------------------------------------------------------------------------------- from the supervisor

    def on_progress(self, progress: Progress) -> None:
        self._observer.on_progress(progress)

    def on_ready(self, models: list[ModelInfo], device: Device, send: Send) -> None:
        self.models = {info.name: info for info in models}
        self.device = device
        self._worker = MessageCoalescer(send, self._coalesce_seconds)
        for vocabulary in self._vocabularies.values():
            send(vocabulary)
        self._observer.on_ready(models, device)

    def on_lost(self) -> None:
        self._worker = None
        self._observer.on_lost()
        self.fail_all("engine_error", "the engine stopped working on this request")

    def on_stats(self, stats: Stats) -> None:
        unsent = [part.sizes for submission in self._unsent.values() for part in submission.parts]
        if unsent:
            waiting = stats.waiting + sum(map(len, unsent))
            tokens = stats.queue_tokens + sum(map(sum, unsent))
            stats = msgspec.structs.replace(stats, waiting=waiting, queue_tokens=tokens)
        self._observer.on_stats(stats)

    def on_output(self, output: StepOutput) -> None:
        """Route the events of one step. Each call receives all of its events at once."""
        now = time.monotonic()
        calls: dict[Call, None] = {}
        token_counts: TokenCounts = {}
        for scored in output.prompts:
            sequence = self._sequences.get(scored.request_id)
            if sequence is not None:
                sequence.call.put(sequence.index, scored)
                calls[sequence.call] = None
        for tokens in output.tokens:
            sequence = self._sequences.get(tokens.request_id)
            if sequence is not None:
                if not sequence.started:
                    self._first_output(sequence, now)
                _count_tokens(sequence, len(tokens.token_ids), now, token_counts)
                sequence.call.put(sequence.index, tokens)
                calls[sequence.call] = None
        for encoded in output.encoded:
            sequence = self._sequences.get(encoded.request_id)
            if sequence is not None:
                self._first_output(sequence, now)
                sequence.answers -= 1
                self._leave_queue(sequence, 1, sequence.sizes[encoded.index])
                if sequence.answers == 0:
                    self._end(encoded.request_id, sequence, encoded)
                if sequence.index:
                    encoded = msgspec.structs.replace(encoded, index=sequence.index + encoded.index)
                sequence.call.put(0, encoded)
                calls[sequence.call] = None
        endings: tuple[Finished | Failed, ...] = (*output.finished, *output.failed)
        for event in endings:
            sequence = self._sequences.get(event.request_id)
            if sequence is not None:
                if isinstance(event, Finished):
                    self._first_output(sequence, now)
                    generated = len(event.hypotheses[0].token_ids) if event.hypotheses else 0
                    _count_tokens(sequence, generated - sequence.seen_tokens, now, token_counts)
                    sequence.call.completion_tokens += sum(len(other.token_ids) for other in event.hypotheses[1:])
                self._end(event.request_id, sequence, event)
                sequence.call.put(sequence.index, event)
                calls[sequence.call] = None
        for (model, count, earlier), sequences in token_counts.items():
            self._observer.on_tokens(model, count, None if earlier is None else now - earlier, sequences)
        for call in calls:
            call.deliver()
        self._send_parts()

    def _first_output(self, sequence: _Sequence, now: float) -> None:
        if not sequence.started:
            sequence.started = True
            if sequence.answers == 1:
                self._leave_queue(sequence, sequence.waiting_sequences, sequence.waiting_tokens)
            self._observer.on_first_output(sequence.model, now - sequence.call.submitted)

    def _leave_queue(self, sequence: _Sequence, sequences: int, tokens: int) -> None:
        """Count sequences of one `_Sequence` that wait no longer."""
        sequences, tokens = min(sequences, sequence.waiting_sequences), min(tokens, sequence.waiting_tokens)
        if sequences:
            sequence.waiting_sequences -= sequences
            sequence.waiting_tokens -= tokens
            sequence.submission.waiting_sequences -= sequences
            sequence.submission.waiting_tokens -= tokens
            self.queue.leave(sequences, tokens)

    def _end(self, request_id: int, sequence: _Sequence, event: Finished | Encoded | Failed) -> None:
        self._leave_queue(sequence, sequence.waiting_sequences, sequence.waiting_tokens)
        del self._sequences[request_id]
        sequence.call.ended(request_id, event)
        self._observer.on_finished(sequence.model, event)


def _sequences(submission: Submission, part: Part) -> list[tuple[int, _Sequence]]:
    """The entries of a part that is about to be sent, by request id: one per row, or one for all items."""
    message = part.message
    if isinstance(message, Encode):
        count, tokens = len(part.sizes), sum(part.sizes)
        whole = _Sequence(submission, part.first, message.model, part.sizes, count, count, tokens)
        return [(message.request_id, whole)]
    return [
        (row.request_id, _Sequence(submission, part.first + index, message.model, [size], 1, 1, size))
        for index, (row, size) in enumerate(zip(message.rows, part.sizes, strict=True))
    ]


def _count_tokens(
    sequence: _Sequence, count: int, now: float, token_counts: dict[tuple[str, int, float | None], int]
) -> None:
    """Count one step's new tokens of a sequence in `token_counts`, and remember when they arrived.

    Sequences share an entry if they have the same model, number of new tokens and time of previous tokens.
    """
    if count > 0:
        key = sequence.model, count, sequence.last_seconds
        token_counts[key] = token_counts.get(key, 0) + 1
        sequence.seen_tokens += count
        sequence.call.completion_tokens += count
        sequence.last_seconds = now
