"""A generating request after submission: engine events become text deltas, and finally a result.

Streaming and waiting read the same run. `forward` passes deltas on in the call that receives the engine's message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

from server.errors import DeadlineExceeded, NotReady, RequestError, RequestTooLarge
from server.ipc.client.call import Call, SequenceEvent, request_error
from server.ipc.wire.logprobs import Logprobs
from server.ipc.wire.messages import Encoded, Failed, Finished, PromptScored, Tokens
from server.operations.generating.generated_text import GeneratedText, TextDelta
from server.operations.generating.logprob_memory import LogprobMemory
from server.system.loop_iterations import next_iteration

Delta = TypeVar("Delta")
ResultOut = TypeVar("ResultOut", covariant=True)
ResultT = TypeVar("ResultT")


class Run(Protocol[Delta, ResultOut]):
    """A submitted request whose result can be read in parts."""

    @property
    def model_name(self) -> str:
        """Name of the model that answers."""

    @property
    def answer_size(self) -> int:
        """Estimated number of numbers and strings in the result."""

    async def begin(self) -> list[Delta]:
        """Wait for the first deltas. Raises the request's error if a sequence fails before."""

    async def forward(self, sink: Callable[[list[Delta]], bool]) -> bool:
        """Pass deltas to `sink` as they arrive.

        Returns True after `sink` has returned False, and False when the run has ended.

        Raises the request's error if a sequence fails, and ClientGone if the client disconnects.
        """

    async def complete(self) -> None:
        """Wait until the run has ended."""

    @property
    def timed_out(self) -> bool:
        """Whether the deadline has ended a part of the result before it was complete."""

    def result(self) -> ResultOut:
        """The complete result. Call it when the run has ended."""


def check_complete(run: Run[Any, Any] | TextRun) -> None:
    """Raise DeadlineExceeded for a run whose deadline has ended a part of its result."""
    if run.timed_out:
        raise DeadlineExceeded("the deadline passed before the answer was complete")


async def complete_result(run: Run[Any, ResultT]) -> ResultT:
    """Wait for the whole result of a run. Raises the errors of `Run.forward` and of `check_complete`."""
    await run.complete()
    check_complete(run)
    await next_iteration()
    return run.result()


@dataclass(frozen=True)
class TokenUsage:
    """Token counts of a request.

    cached_tokens: prompt tokens found in the prefix cache.
    reasoning_tokens: the completion tokens of the reasoning of chat answers. Known after the end only.
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
    """Seconds of the slowest sequence in each phase; None if stop strings ended all sequences early.

    total_seconds: since the arrival of the request.
    """

    queue_seconds: float | None
    prefill_seconds: float | None
    decode_seconds: float | None
    total_seconds: float

    def then(self, later: PhaseSeconds) -> PhaseSeconds:
        """Add the times of a later run of the same request. A time that either run lacks is None."""

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
    """The sequences of a call as texts: `texts[row][rank]`, one rank per hypothesis.

    items: for each row the part of the answer that it belongs to. A failure ends this part alone, unless all have
        failed. None: a failure of any row fails the request.
    failures: errors of the parts that have failed.
    logprob_memory: reserves the memory of log-probabilities; None for answers without any.
    prompt_logprobs: log-probabilities of a row's prompt, from its second token on, if the request asked for them.
    cached_tokens: prompt tokens of a row that the engine found in its prefix cache.
    further_usage: tokens of a second attempt, and those of the answers that it replaced, besides the ones of `texts`.
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
        """Cached tokens of all prompts. Each prompt counts once, with the count of its first row."""
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
        """Deltas of new events; several events of one answer become one delta."""
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
        """The error of the part of the answer that a row belongs to, or None."""
        return self.failures.get(self.items[row]) if self.items is not None else None

    def _fail(self, row: int, error: RequestError) -> list[TextDelta]:
        """End the part of the answer that a failed row belongs to. Raises the error if no other part is left.

        A restart of the worker and a request that is too large concern all parts.
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
        """The rows of each part of the answer. With thousands of parts, a search for each failure takes a second."""
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
        """Reserve memory for the log-probabilities of deltas. Raises the errors of `LogprobMemory.add`."""
        if self.logprob_memory is not None:
            found = [delta.logprobs for delta in deltas]
            self.logprob_memory.add(sum(logprobs.num_values for logprobs in found if isinstance(logprobs, Logprobs)))
        return deltas
