"""A request for generated text after its submission: engine events become text deltas, and finally a result.

Streamed and whole answers use the same run. `forward` passes deltas on in the call that receives the engine's message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

from server.errors import DeadlineExceeded, NotReady, RequestError, RequestTooLarge
from server.ipc.client.call import Call, SequenceEvent, request_error
from server.ipc.wire.encode_messages import Encoded
from server.ipc.wire.generate_messages import Finished, PromptScored, Tokens
from server.ipc.wire.logprobs import Logprobs
from server.ipc.wire.step_messages import Failed
from server.operations.generating.generated_text import GeneratedText, TextDelta
from server.operations.generating.logprob_memory import LogprobMemory
from server.system.loop_iterations import next_iteration

Delta = TypeVar("Delta")
ResultOut = TypeVar("ResultOut", covariant=True)
ResultT = TypeVar("ResultT")


class Run(Protocol[Delta, ResultOut]):
    """A submitted request whose result can be read in parts (deltas) or whole."""

    @property
    def model_name(self) -> str:
        """Name of the model that answers."""

    @property
    def answer_size(self) -> int:
        """Estimated count of numbers and strings in the result."""

    async def begin(self) -> list[Delta]:
        """Wait for the first deltas, and return them; empty if the run ends without a delta.

        Raises the request's error if a sequence fails before the first delta.
        """

    async def forward(self, sink: Callable[[list[Delta]], bool]) -> bool:
        """Pass deltas to `sink` as they arrive, until it returns False or the run ends.

        Returns True if `sink` has returned False (call again for further deltas), and False if the run has ended.

        Raises the request's error if a sequence fails, and ClientGone if the client disconnects.
        """

    async def complete(self) -> None:
        """Wait until the run has ended. Raises the errors of `forward`."""

    @property
    def timed_out(self) -> bool:
        """Whether a part of the result is incomplete because the deadline has passed."""

    def result(self) -> ResultOut:
        """The whole result. May be called only when the run has ended."""


def check_complete(run: Run[Any, Any] | TextRun) -> None:
    """Raise DeadlineExceeded if a part of the run's result is incomplete because the deadline has passed."""
    if run.timed_out:
        raise DeadlineExceeded("the deadline passed before the answer was complete")


async def complete_result(run: Run[Any, ResultT]) -> ResultT:
    """Wait for the whole result of a run. Raises the errors of `Run.forward`, and DeadlineExceeded if incomplete."""
    await run.complete()
    check_complete(run)
    await next_iteration()
    return run.result()


@dataclass(frozen=True)
class TokenUsage:
    """Token counts of a request.

    cached_tokens: prompt tokens found in the prefix cache.
    reasoning_tokens: completion tokens that belong to the reasoning of chat answers. Known only at the end.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True)
class PhaseSeconds:
    """Seconds that the slowest sequence has spent in each phase; None if stop strings ended all sequences early.

    total_seconds: seconds since the arrival of the request.
    """

    queue_seconds: float | None
    prefill_seconds: float | None
    decode_seconds: float | None
    total_seconds: float

    def then(self, later: PhaseSeconds) -> PhaseSeconds:
        """Add the times of a later run of the same request. A sum is None if one of the two times is None."""

        def both(one: float | None, other: float | None) -> float | None:
            return None if one is None or other is None else one + other

        return PhaseSeconds(
            both(self.queue_seconds, later.queue_seconds),
            both(self.prefill_seconds, later.prefill_seconds),
            both(self.decode_seconds, later.decode_seconds),
            later.total_seconds,
        )


@dataclass
class TextRun:
    """The generated texts of a call's sequences. A row is the index of a sequence.

    texts: `texts[row][rank]`, one rank per hypothesis.
    finished: the final events of all sequences that have ended.
    prompt_logprobs: row to log-probabilities of its prompt from the second token on, if the request asked for them.
    cached_tokens: row to the number of its prompt tokens that were found in the prefix cache.
    items: for each row, the index of the part of the answer that it belongs to. A failed row ends only this part,
        unless all parts fail. None: a failed row fails the request.
    failures: index of each failed part to its error.
    logprob_memory: reserves the memory of log-probabilities; None for answers without log-probabilities.
    further_usage: tokens that `texts` do not contain: tokens of second attempts, or of the answers that they replaced.
    """

    call: Call
    texts: list[list[GeneratedText]]
    finished: list[Finished] = field(default_factory=list)
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    items: Sequence[int] | None = None
    failures: dict[int, RequestError] = field(default_factory=dict)
    logprob_memory: LogprobMemory | None = None
    further_usage: TokenUsage = TokenUsage(0, 0, 0)

    @property
    def answer_size(self) -> int:
        prompts = sum(scored.num_values for scored in self.prompt_logprobs.values())
        return prompts + sum(text.size for row in self.texts for text in row)

    async def begin(self) -> list[TextDelta]:
        while events := await self.call.events():
            deltas = self._deltas(events)
            if deltas:
                return deltas
        return []

    async def forward(self, sink: Callable[[list[TextDelta]], bool]) -> bool:
        return await self.call.forward(lambda events: sink(self._deltas(events)))

    async def complete(self) -> None:
        try:
            await self.forward(lambda _: True)
        except RequestError:
            # Freeing thousands of rows takes a while, and requests that fail together are woken together.
            await next_iteration()
            raise

    @property
    def timed_out(self) -> bool:
        return any(text.finish_reason == "timeout" for row in self.texts for text in row)

    def completion_tokens(self) -> int:
        """Number of generated tokens, over all hypotheses."""
        return sum(len(text.token_ids) for row in self.texts for text in row)

    def cached_prompt_tokens(self, rows_per_prompt: int = 1) -> int:
        """Number of cached tokens of all prompts. Only the first row of each prompt is counted."""
        return sum(self.cached_tokens.get(row, 0) for row in range(0, len(self.texts), rows_per_prompt))

    def timings(self) -> PhaseSeconds:
        def slowest(name: str) -> float | None:
            return max((getattr(phases, name) for phases in self.finished), default=None)

        return PhaseSeconds(
            slowest("queue_seconds"),
            slowest("prefill_seconds"),
            slowest("decode_seconds"),
            time.monotonic() - self.call.arrival,
        )

    def _deltas(self, events: Sequence[tuple[int, SequenceEvent]]) -> list[TextDelta]:
        """Convert new events to deltas. Several events of the same answer become one delta."""
        if len(events) == 1:
            return self._handle(*events[0])
        merged: dict[int, TextDelta] = {}
        for row, event in events:
            for delta in self._handle(row, event):
                earlier = merged.setdefault(id(delta.answer), delta)
                if earlier is not delta:
                    earlier.extend(delta)
        return list(merged.values())

    def _handle(self, row: int, event: SequenceEvent) -> list[TextDelta]:
        if self.failure_of(row) is not None:
            return []
        texts = self.texts[row]
        if isinstance(event, Tokens):
            self.cached_tokens[row] = event.cached_tokens
            text = texts[0]
            # The worker ends beams at stop strings itself, and its `Finished` carries all hypotheses.
            if text.is_beam:
                return self._reserved([text.push(event.token_ids, event.logprobs)])
            if text.done:
                return []
            (delta,) = self._reserved([text.push(event.token_ids, event.logprobs)])
            if text.done:
                self.call.stop(row)
            return [delta]
        if isinstance(event, Failed):
            return self._fail(row, request_error(event))
        if isinstance(event, PromptScored):
            self.prompt_logprobs[row] = Logprobs(event.logprobs)
            return []
        if isinstance(event, Encoded):
            return []
        return self._finish(row, event)

    def failure_of(self, row: int) -> RequestError | None:
        """The error of the part of the answer that a row belongs to; None if that part has not failed."""
        return self.failures.get(self.items[row]) if self.items is not None else None

    def _fail(self, row: int, error: RequestError) -> list[TextDelta]:
        """End the part of the answer that a failed row belongs to. Returns no deltas.

        Raises the error if no other part is left, or if it concerns all parts: a restart of the worker (NotReady) or
        too little memory for the request (RequestTooLarge).
        """
        if self.items is None or isinstance(error, NotReady | RequestTooLarge):
            raise error
        self.failures[self.items[row]] = error
        if len(self.failures) == len(self._rows_by_item):
            raise next(iter(self.failures.values()))
        for other in self._rows_by_item[self.items[row]]:
            self.call.abandon(other)
            for text in self.texts[other]:
                text.fail("timeout" if isinstance(error, DeadlineExceeded) else "error")
        return []

    @cached_property
    def _rows_by_item(self) -> Mapping[int, list[int]]:
        """Index of each part of the answer to its rows, so that no failure needs a search through thousands of rows."""
        found: dict[int, list[int]] = {}
        for row, item in enumerate(self.items or ()):
            found.setdefault(item, []).append(row)
        return found

    def _finish(self, row: int, event: Finished) -> list[TextDelta]:
        texts = self.texts[row]
        self.cached_tokens[row] = event.cached_tokens
        if texts[0].done and not texts[0].is_beam:
            return []
        self.finished.append(event)
        if all(hypothesis.finish_reason == "timeout" and not hypothesis.token_ids for hypothesis in event.hypotheses):
            return self._fail(row, DeadlineExceeded("the deadline passed before the first token"))
        # Masks can leave fewer candidate tokens than beams, and then there are fewer hypotheses than requested.
        del texts[max(len(event.hypotheses), 1) :]
        return self._reserved(
            [text.finish(hypothesis) for text, hypothesis in zip(texts, event.hypotheses, strict=True)]
        )

    def _reserved(self, deltas: list[TextDelta]) -> list[TextDelta]:
        """Reserve memory for the log-probabilities of deltas, and return the deltas.

        Raises the errors of `LogprobMemory.add`.
        """
        if self.logprob_memory is not None:
            found = [delta.logprobs for delta in deltas]
            self.logprob_memory.add(sum(logprobs.num_values for logprobs in found if isinstance(logprobs, Logprobs)))
        return deltas
