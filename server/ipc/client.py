"""The HTTP process's client of the worker: admits requests, sends them, and routes each event to its call.

Imports no HTTP and no text code.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from server.errors import NotReady, Overloaded, RequestTooLarge
from server.ipc.call import Call
from server.ipc.coalescing import MessageCoalescer, Send
from server.ipc.descriptions import Device, ModelInfo
from server.ipc.messages import (
    Abort,
    Encode,
    Encoded,
    Failed,
    FailureCode,
    Finished,
    Generate,
    GenerateRow,
    Progress,
    Stats,
    StepOutput,
    Vocabulary,
)

Stage = Literal["waiting", "running"]
TokenCounts = dict[tuple[str, int, float | None], int]
"""Number of sequences by model, number of new tokens, and time of their previous tokens (None: no previous ones)."""


class Observer(Protocol):
    """Receives the events of the engine client, for metrics.

    on_tokens: `count` new tokens in each of `sequences` sequences, `seconds` after their last ones (None: the first).
    on_finished: event is None for a sequence that a stop string ended in this process.
    on_cancelled: the client of a sequence disconnected.
    """

    def on_progress(self, progress: Progress) -> None: ...

    def on_ready(self, models: list[ModelInfo], device: Device) -> None: ...

    def on_lost(self) -> None: ...

    def on_stats(self, stats: Stats) -> None: ...

    def on_admitted(self, model: str, tokens: int) -> None: ...

    def on_first_output(self, model: str, seconds: float) -> None: ...

    def on_tokens(self, model: str, count: int, seconds: float | None, sequences: int) -> None: ...

    def on_finished(self, model: str, event: Finished | Encoded | Failed | None) -> None: ...

    def on_cancelled(self, stage: Stage) -> None: ...


@dataclass(slots=True)
class _Sequence:
    """A sequence that was sent to the worker and has not ended.

    call, index: the call that receives its events, and its index in that call.
    tokens: its size in tokens, which counts towards the limit of the queue.
    answers: number of results still to come before it ends; more than one for an `Encode` of several items.
    waiting: whether it still counts towards the queue limits, because no output has arrived.
    """

    call: Call
    index: int
    model: str
    tokens: int
    answers: int
    waiting: bool = True
    seen_tokens: int = 0
    last_seconds: float | None = None


class EngineClient:
    """Sends requests to the worker. The number of requests and tokens that wait for their first step is limited.

    observer: receives counts for the metrics.
    max_queue_requests, max_queue_tokens: limits over all models. An `Encode` counts as one request.
    coalesce_seconds: longest time that a request to an idle worker is held back for others of the same burst.
    """

    def __init__(
        self, observer: Observer, max_queue_requests: int, max_queue_tokens: int, coalesce_seconds: float = 0.0
    ) -> None:
        self.models: dict[str, ModelInfo] = {}
        self.device: Device = "cpu"
        self.max_queue_requests = max_queue_requests
        self.max_queue_tokens = max_queue_tokens
        self.waiting_requests = 0
        self.waiting_tokens = 0
        self._observer = observer
        self._coalesce_seconds = coalesce_seconds
        self._worker: MessageCoalescer | None = None
        self._sequences: dict[int, _Sequence] = {}
        self._vocabularies: dict[str, Vocabulary] = {}
        self._ids = itertools.count(1)

    @property
    def connected(self) -> bool:
        """Whether a worker has loaded all models."""
        return self._worker is not None

    @property
    def open_requests(self) -> int:
        """Sequences that have not ended."""
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
        """Admit a call's request with all its rows and send it. Returns the ids of its sequences.

        An `Encode` counts as one sequence. A `Generate` without rows is not sent.

        Raises:
            NotReady: no worker is ready.
            RequestTooLarge: the sequences exceed the queue or the KV pools even on an idle server.
            Overloaded: the queue is full.
        """
        if self._worker is None:
            raise NotReady("the engine is starting; try again soon", retry_after=2)
        answers = 1
        if isinstance(message, Generate):
            info = self.models[message.model]
            ids = [row.request_id for row in message.rows]
            sizes = [_source_size(message, row, info) + len(row.decoder_token_ids) for row in message.rows]
            for row in message.rows:
                check_fit(info, message, row)
        else:
            ids, sizes = [message.request_id], [sum(item.num_tokens for item in message.items)]
            answers = len(message.items)
        self._admit(len(ids), sum(sizes))
        idle = not self._sequences
        for index, (request_id, tokens) in enumerate(zip(ids, sizes, strict=True)):
            self._sequences[request_id] = _Sequence(call, index, message.model, tokens, answers)
            self._observer.on_admitted(message.model, tokens)
        if ids:
            self._worker.post(message, idle)
        return ids

    def _admit(self, requests: int, tokens: int) -> None:
        if requests > self.max_queue_requests:
            raise RequestTooLarge(f"{requests} sequences in one request; the limit is {self.max_queue_requests}")
        if tokens > self.max_queue_tokens:
            raise RequestTooLarge(f"{tokens} tokens in one request; the limit is {self.max_queue_tokens}")
        if self.waiting_requests + requests > self.max_queue_requests:
            raise Overloaded(
                f"the queue is full: {self.waiting_requests} sequences are waiting (limit {self.max_queue_requests}); "
                "try again in 1 s",
                retry_after=1,
            )
        if self.waiting_tokens + tokens > self.max_queue_tokens:
            raise Overloaded(
                f"the queue is full: {self.waiting_tokens} tokens are waiting (limit {self.max_queue_tokens}); "
                "try again in 1 s",
                retry_after=1,
            )
        self.waiting_requests += requests
        self.waiting_tokens += tokens

    def abort(self, request_id: int) -> None:
        """Tell the worker to drop a sequence. Events that arrive afterwards are ignored."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._started(sequence)
            if self._worker is not None:
                self._worker.post(Abort(request_id), idle=False)

    def cancelled(self, request_id: int) -> None:
        """Count a sequence whose client disconnected."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._observer.on_cancelled("waiting" if sequence.waiting else "running")

    def completed(self, request_id: int) -> None:
        """Count a sequence that a stop string ended in this process."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._observer.on_finished(sequence.model, None)

    def fail_all(self, code: FailureCode, message: str) -> None:
        """End every open sequence with a failure: the worker died, or the grace time is over."""
        for call in dict.fromkeys(sequence.call for sequence in self._sequences.values()):
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
                if sequence.waiting:
                    self._first_output(sequence, now)
                _count_tokens(sequence, len(tokens.token_ids), now, token_counts)
                sequence.call.put(sequence.index, tokens)
                calls[sequence.call] = None
        for encoded in output.encoded:
            sequence = self._sequences.get(encoded.request_id)
            if sequence is not None:
                self._first_output(sequence, now)
                sequence.answers -= 1
                if sequence.answers == 0:
                    self._end(encoded.request_id, sequence, encoded)
                sequence.call.put(sequence.index, encoded)
                calls[sequence.call] = None
        endings: tuple[Finished | Failed, ...] = (*output.finished, *output.failed)
        for event in endings:
            sequence = self._sequences.get(event.request_id)
            if sequence is not None:
                if isinstance(event, Finished):
                    self._first_output(sequence, now)
                    generated = len(event.hypotheses[0].token_ids) if event.hypotheses else 0
                    _count_tokens(sequence, generated - sequence.seen_tokens, now, token_counts)
                self._end(event.request_id, sequence, event)
                sequence.call.put(sequence.index, event)
                calls[sequence.call] = None
        for (model, count, earlier), sequences in token_counts.items():
            self._observer.on_tokens(model, count, None if earlier is None else now - earlier, sequences)
        for call in calls:
            call.deliver()

    def _first_output(self, sequence: _Sequence, now: float) -> None:
        if sequence.waiting:
            self._started(sequence)
            self._observer.on_first_output(sequence.model, now - sequence.call.submitted)

    def _started(self, sequence: _Sequence) -> None:
        if sequence.waiting:
            sequence.waiting = False
            self.waiting_requests -= 1
            self.waiting_tokens -= sequence.tokens

    def _end(self, request_id: int, sequence: _Sequence, event: Finished | Encoded | Failed) -> None:
        self._started(sequence)
        del self._sequences[request_id]
        sequence.call.ended(request_id)
        self._observer.on_finished(sequence.model, event)


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
        sequence.last_seconds = now


def _source_size(message: Generate, row: GenerateRow, info: ModelInfo) -> int:
    """Tokens of the prompt or source. Audio always has the full source length of its model."""
    return info.source_tokens if message.frames else len(message.prompts[row.prompt])


def check_fit(info: ModelInfo, message: Generate, row: GenerateRow) -> None:
    """Raise RequestTooLarge for a sequence, or a group of beams, that the KV pools could not hold even alone."""
    if info.block_size == 0:
        return
    beams = message.params.num_beams
    prefix = len(row.decoder_token_ids) if info.is_encoder_decoder else len(message.prompts[row.prompt])
    needs = {"self": beams * -(-(prefix + row.max_new_tokens) // info.block_size)}
    if info.is_encoder_decoder:
        needs["cross"] = -(-_source_size(message, row, info) // info.block_size)
    for pool, blocks in needs.items():
        if pool in info.kv_blocks and blocks > info.kv_blocks[pool]:
            available = info.kv_blocks[pool]
            raise RequestTooLarge(
                f"{_work(message, row, info, pool)} need {blocks:,} KV blocks, but the {pool} pool of model "
                f'"{info.name}" has {available:,} ({available * info.block_size:,} tokens). Lower max_new_tokens, or '
                "start the server with a larger --kv-cache-memory.",
                "max_new_tokens",
            )


def _work(message: Generate, row: GenerateRow, info: ModelInfo, pool: str) -> str:
    """Describe the tokens of a row that one KV pool would hold, for an error message."""
    if pool == "cross":
        return f"{_source_size(message, row, info):,} source tokens"
    prefix = len(row.decoder_token_ids) if info.is_encoder_decoder else len(message.prompts[row.prompt])
    kind = "decoder" if info.is_encoder_decoder else "prompt"
    tokens = f"{prefix:,} {kind} token{'s' * (prefix != 1)} + {row.max_new_tokens:,} new tokens"
    beams = message.params.num_beams
    return f"{tokens} with {beams} beams" if beams > 1 else tokens
