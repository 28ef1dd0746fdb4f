"""Tokens into text, one `Answer` for each hypothesis that a client will get. The same path whether streamed or not.

What was given piece by piece is, joined, exactly the final text: streaming only looks at it earlier.
"""

from __future__ import annotations

import math
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.errors import DeadlineExceeded, EngineFailure, InvalidRequest, NotReady, RequestError, RequestTooLarge
from server.ipc.call import Call, Event
from server.ipc.messages import (
    Encoded,
    Failed,
    Finished,
    Hypothesis,
    PromptScored,
    TokenLogprob,
    Tokens,
)
from server.ipc.params import GenerationParams
from server.text.detokenizer import IncrementalDetokenizer
from server.text.token_bytes import TokenBytes
from server.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextOptions:
    """How tokens become text. token_bytes: token by token, for grammars and for beams with stop strings."""

    skip_special_tokens: bool = True
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    token_bytes: TokenBytes | None = None

    @property
    def drops_space(self) -> bool:
        """Whether a space that a text on its own begins with is not part of it."""
        return self.token_bytes is not None and self.token_bytes.opens_with_space


@dataclass(slots=True)
class Delta:
    """News of one answer: text that is certain now, and the tokens that came with it."""

    answer: Answer
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


class Answer:
    """One answer in the making.

    row: index of its sequence in the call. rank: which of the sequence's hypotheses it is, best first.
    continues: the token ids whose text this one goes on from (a decoder's prompt, a forced prefix), if any.
    echo: what the text begins with, before anything that was made.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: GenerationParams,
        row: int,
        rank: int,
        options: TextOptions,
        continues: Sequence[int] = (),
        echo: str = "",
    ) -> None:
        self.row = row
        self.rank = rank
        self.tokenizer = tokenizer
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.score: float | None = None
        self._attention: bytes | None = None
        ends = () if options.include_stop else (*params.end_token_ids, *params.stop_token_ids)
        self._unsaid = echo
        self._silent = frozenset(ends)
        self._own_stops = frozenset(params.stop_token_ids)
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            prompt_ids=continues,
            skip_special_tokens=options.skip_special_tokens,
            stop=options.stop,
            include_stop=options.include_stop,
            token_bytes=options.token_bytes,
            show_names=not params.stop_texts,
        )
        self.is_beam = params.num_beams > 1

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None) -> Delta:
        """New tokens. Those after a completed stop string are not taken; then the answer is done."""
        text, self._unsaid = self._unsaid, ""
        taken = 0
        for token_id in token_ids:
            if self.finish_reason is not None:
                break
            taken += 1
            if token_id not in self._silent:
                text += self._detokenizer.push_one(token_id)
                if self._detokenizer.stopped is not None:
                    self.finish_reason, self.stop_reason = "stop", self._detokenizer.stopped
        delta = Delta(self, text, list(token_ids[:taken]), list(logprobs[:taken]) if logprobs else [])
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        return delta

    def finish(self, hypothesis: Hypothesis) -> Delta:
        """The engine's whole answer: what of it was not seen yet, and what text was still held back."""
        seen = len(self.token_ids)
        delta = self.feed(hypothesis.token_ids[seen:], hypothesis.logprobs[seen:] if hypothesis.logprobs else None)
        self.score, self._attention = hypothesis.score, hypothesis.attention
        if not self.done:
            rest = self._detokenizer.finish()
            delta.text += rest
            self.text += rest
            self.finish_reason = hypothesis.finish_reason
            stopped_by = hypothesis.stop_token_id
            if self._detokenizer.stopped is not None:
                self.finish_reason, self.stop_reason = "stop", self._detokenizer.stopped
            elif stopped_by in self._own_stops:
                self.stop_reason = stopped_by
        return delta

    def mean_logprob(self) -> float:
        """Log-probability per token, under the raw distribution; the worst there is where no token was made."""
        return sum(entry.logprob for entry in self.logprobs) / len(self.logprobs) if self.logprobs else -math.inf

    def prompt_logprobs_json(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any] | None]:
        """For a whole prompt, given those of all its tokens but the first, which nothing foretells."""
        return [None, *(self.logprob_json(entry) for entry in logprobs)]

    def alignment_json(self, source_ids: Sequence[int]) -> dict[str, Any]:
        """What each token of the answer looked at in its source: a row for each token here, a column for each there."""
        numbers = array("f", self._attention or b"")
        if sys.byteorder == "big":
            numbers.byteswap()
        width = len(source_ids)
        rows = range(len(self.token_ids) if self._attention else 0)
        return {
            "source_tokens": [self.tokenizer.id_to_token(token_id) or "" for token_id in source_ids],
            "target_tokens": [self.tokenizer.id_to_token(token_id) or "" for token_id in self.token_ids],
            "matrix": [numbers[row * width : (row + 1) * width].tolist() for row in rows],
        }

    def logprobs_json(self) -> list[dict[str, Any]]:
        return [self.logprob_json(entry) for entry in self.logprobs]

    def logprob_json(self, entry: TokenLogprob) -> dict[str, Any]:
        return {
            "id": entry.token_id,
            "token": self._spell(entry.token_id),
            "logprob": entry.logprob,
            "top": [{"id": i, "token": self._spell(i), "logprob": logprob} for i, logprob in entry.top],
        }

    def _spell(self, token_id: int) -> str:
        return self.tokenizer.decode([token_id], skip_special_tokens=False)


@dataclass
class Run:
    """A call whose sequences become answers: `answers[row][rank]`, as many ranks as there are hypotheses.

    prompts: log-probabilities of the prompt's tokens from the second on, of each row that asked for them.
    cached: how many tokens of a row's prompt the engine did not have to compute.
    """

    call: Call
    answers: list[list[Answer]]
    finished: list[Finished] = field(default_factory=list)
    prompts: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)

    async def begin(self) -> list[Delta]:
        """The first news. Raises the request's error when a sequence fails."""
        return self._deltas(await self.call.events())

    async def forward(self, take: Callable[[list[Delta]], bool]) -> bool:
        """Hand news to `take` the moment they come, until it returns False or all answers are done.

        Returns which, and raises, as `Call.forward` does; also the request's error when a sequence fails.
        """
        return await self.call.forward(lambda events: take(self._deltas(events)))

    async def complete(self) -> None:
        """Wait until all answers are done."""
        await self.forward(lambda _: True)

    def _deltas(self, events: Sequence[tuple[int, Event]]) -> list[Delta]:
        """Several events of one answer as one delta."""
        if len(events) == 1:
            return self._take(*events[0])
        fresh: dict[int, Delta] = {}
        for row, event in events:
            for delta in self._take(row, event):
                earlier = fresh.setdefault(id(delta.answer), delta)
                if earlier is not delta:
                    earlier.text += delta.text
                    earlier.token_ids += delta.token_ids
                    earlier.logprobs += delta.logprobs
        return list(fresh.values())

    def _take(self, row: int, event: Event) -> list[Delta]:
        answers = self.answers[row]
        if isinstance(event, Tokens):
            self.cached[row] = event.cached_tokens
            answer = answers[0]
            # Beams know of stop strings themselves, and their end has more to tell.
            if answer.is_beam:
                return [answer.feed(event.token_ids, event.logprobs)]
            if answer.done:
                return []
            delta = answer.feed(event.token_ids, event.logprobs)
            if answer.done:
                self.call.stop(row)
            return [delta]
        if isinstance(event, Failed):
            raise failure(event)
        if isinstance(event, PromptScored):
            self.prompts[row] = event.logprobs
            return []
        if isinstance(event, Encoded):
            return []
        self.cached[row] = event.cached_tokens
        if answers[0].done and not answers[0].is_beam:
            return []
        self.finished.append(event)
        if all(reason == "timeout" for reason in (h.finish_reason for h in event.hypotheses)) and not any(
            h.token_ids for h in event.hypotheses
        ):
            raise DeadlineExceeded("the deadline passed before the first token")
        # Where masks leave fewer tokens than beams, there are fewer hypotheses than were asked for.
        del answers[max(len(event.hypotheses), 1) :]
        return [answer.finish(hypothesis) for answer, hypothesis in zip(answers, event.hypotheses, strict=True)]

    def timings(self, arrival: float) -> dict[str, float | None]:
        """Milliseconds of the slowest sequence in each phase; null where a stop string ended all of them early."""

        def slowest(name: str) -> float | None:
            return max((round(getattr(one, name) * 1000, 3) for one in self.finished), default=None)

        return {
            "queue_ms": slowest("queue_seconds"),
            "prefill_ms": slowest("prefill_seconds"),
            "decode_ms": slowest("decode_seconds"),
            "total_ms": round((time.monotonic() - arrival) * 1000, 3),
        }

    def cached_tokens(self, candidates: int = 1) -> int:
        """Of each prompt's tokens, which count once, those that its first row found. candidates: rows of a prompt."""
        return sum(self.cached.get(row, 0) for row in range(0, len(self.answers), candidates))


def best(answers: Sequence[Answer], candidates: int, count: int) -> list[Answer]:
    """Of each run of so many candidates the `count` with the highest log-probability per token, best first.

    Source: OpenAI API reference, completions, `best_of`. Equal ones keep their order.
    """
    starts = range(0, len(answers), candidates)
    ranked = [sorted(answers[i : i + candidates], key=lambda answer: -answer.mean_logprob()) for i in starts]
    return [answer for run in ranked for answer in run[:count]]


def failure(event: Failed) -> RequestError:
    """The error that a failed sequence means for its request."""
    if event.code == "timeout":
        return DeadlineExceeded(event.message)
    if event.code == "request_too_large":
        return RequestTooLarge(event.message)
    if event.code == "not_ready":
        return NotReady(event.message, retry_after=2)
    if event.code == "invalid_format":
        return InvalidRequest(event.message, "response_format")
    return EngineFailure(event.message)


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "cached_tokens": cached_tokens,
    }
