"""Beam search as arithmetic: candidates in, surviving beams out. Knows log-probabilities and tokens, no model.

Follows what `transformers` 5 does with `generate(num_beams=...)`, so that answers agree token for token:

- Each step looks at the best `max(2, 1 + end ids) * num_beams` continuations of all beams together, so that enough of
  them go on even if every beam could end. Those that do not end keep running.
- Only the best `num_beams` continuations may become finished hypotheses; the best `num_beams` ever seen are kept.
- A hypothesis scores `sum of log-probabilities / length ** length_penalty`, its end token counted in both.
- `early_stopping=True` ends with the `num_beams`-th hypothesis. Otherwise the search ends when the best running beam
  cannot beat the worst kept hypothesis: judged at its present length (`False`), or, when long answers are favoured,
  at the longest possible one (`"never"`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from server.engine.stop_texts import StopTexts
from server.ipc.messages import TokenLogprob

Float32s = NDArray[np.float32]
Ids = NDArray[np.int64]
Describe = Callable[[int, int], TokenLogprob]
"""From (row of this step, token id) to the log-probability to report."""

ZERO = np.float32(0.0)
ONE = np.float32(1)
NEVER = np.float32(-1e9)
"""Low enough that no real sum of log-probabilities is near it, and finite, so that nothing turns into NaN."""


@dataclass(slots=True)
class Beam:
    """New tokens with their summed log-probability (running) or final score (finished).

    is_possible: false for what only fills a place, where fewer tokens may follow than there are beams.
    """

    tokens: list[int] = field(default_factory=list)
    score: np.float32 = ZERO
    logprobs: list[TokenLogprob] = field(default_factory=list)
    is_possible: bool = True


class BeamSearch:
    """One group of beams, from its first new token on.

    end_ids: tokens that end a hypothesis. max_new_tokens ends every hypothesis. stop_texts: ends those that complete a
    stop string; set before the first step, or None.
    """

    stop_texts: StopTexts | None = None

    def __init__(
        self,
        num_beams: int,
        max_new_tokens: int,
        end_ids: frozenset[int],
        length_penalty: float,
        early_stopping: bool | Literal["never"],
    ) -> None:
        self.num_beams = num_beams
        self.max_new_tokens = max_new_tokens
        self.end_ids = end_ids
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.num_candidates = max(2, 1 + len(end_ids)) * num_beams
        """How many continuations of each row `advance` needs to see (fewer only if the vocabulary has no more)."""
        self.running: list[Beam] = [Beam()]
        self.finished: list[Beam] = []
        self.length = 0
        self.done = False
        self._agreed = 0

    def advance(self, log_probs: Float32s, token_ids: Ids, describe: Describe | None = None) -> list[int]:
        """One step. Returns the parent row of each beam that now runs; its token is the last of `running[i].tokens`.

        log_probs: [rows, candidates], float32, falling in each row: the best continuations of each running beam, after
            logits processors. One row at the first step, `num_beams` after it.
        token_ids: [rows, candidates], int64: which tokens they are.
        describe: asked for each token that survives, if its log-probability is to be reported.
        """
        return _advance_equals([self], log_probs[None], token_ids[None], [describe])[0]

    @property
    def shape(self) -> Hashable:
        """Equal for searches that `advance_together` can take together."""
        return len(self.running), self.num_beams, self.num_candidates, self.length == 0

    def _take(
        self,
        totals: Float32s,
        rows: list[int],
        tokens: list[int],
        ends: list[bool],
        going_on: Float32s,
        survivors: list[int],
        describe: Describe | None,
    ) -> list[int]:
        """Become what the best candidates make of the beams. totals, rows, tokens, ends: of each candidate, best first;
        going_on: the totals, low where they end; survivors: which candidates run on."""

        def child(candidate: int, total: np.float32, penalty: np.float32 = ONE) -> Beam:
            row, token = rows[candidate], tokens[candidate]
            parent = old[row]
            logprobs = [*parent.logprobs, describe(row, token)] if describe is not None else []
            return Beam([*parent.tokens, token], total / penalty, logprobs, bool(total > NEVER / 2))

        old = self.running
        candidates = [i for i in range(min(self.num_beams, len(ends))) if ends[i]]
        if candidates:
            penalty = self._penalty(self.length)
            newly = [child(i, totals[i], penalty) for i in candidates]
            self.finished = self._keep_best([*self.finished, *(beam for beam in newly if beam.score >= NEVER)])
        self.running = [child(i, going_on[i]) for i in survivors]
        self.done = all(ends) or not self._may_improve()
        return [rows[i] for i in survivors]

    def ends(self, tokens: Sequence[int], token: int) -> bool:
        """Whether a hypothesis ends with `token` after `tokens`, whatever its length."""
        return token in self.end_ids or (self.stop_texts is not None and self.stop_texts.ends(tokens, token))

    def _may_improve(self) -> bool:
        """Whether going on can still change the finished hypotheses, as far as `early_stopping` wants to know."""
        if len(self.finished) < self.num_beams:
            return bool(self.running[0].score > -np.inf)
        if self.early_stopping is True:
            return False
        longest = self.early_stopping == "never" and self.length_penalty > 0
        penalty = self._penalty(self.max_new_tokens if longest else self.length)
        return bool(self.running[0].score / penalty > self.finished[-1].score)

    def _penalty(self, length: int) -> np.float32:
        with np.errstate(over="ignore"):
            return np.float32(np.float64(length) ** self.length_penalty)

    def _keep_best(self, beams: Sequence[Beam]) -> list[Beam]:
        return sorted(beams, key=lambda beam: -beam.score)[: self.num_beams]

    def agreed_prefix(self) -> list[int]:
        """The tokens that the best answer is now certain to start with; grows and never shrinks.

        That is what the running beams and the best finished hypothesis share: no other finished one can come first.
        """
        if self.done:
            self._agreed = len(self.finished[0].tokens) if self.finished else self._agreed
            return self.finished[0].tokens if self.finished else self.running[0].tokens[: self._agreed]
        texts = [beam.tokens for beam in self.running if beam.score > -np.inf]
        texts += [self.finished[0].tokens] if self.finished else []
        if not texts:
            return self.running[0].tokens[: self._agreed]
        shortest = min(len(text) for text in texts)
        while self._agreed < shortest and len({text[self._agreed] for text in texts}) == 1:
            self._agreed += 1
        return texts[0][: self._agreed]

    def agreed_logprobs(self) -> list[TokenLogprob]:
        """Beside `agreed_prefix`, one for each of its tokens, if they are kept at all."""
        prefix = self.agreed_prefix()
        for beam in (*self.finished[:1], *self.running):
            if beam.tokens[: len(prefix)] == prefix:
                return beam.logprobs[: len(prefix)]
        return []

    def hypotheses(self, count: int) -> list[Beam]:
        """The best answers, best first; at least one, and fewer than `count` where no more are possible.

        Of a search that was cut short, running beams count as they stand.
        """
        answers = self.finished
        if not (self.done and self.finished):
            penalty = self._penalty(max(self.length, 1))
            unfinished = [replace(beam, score=beam.score / penalty) for beam in self.running]
            answers = self._keep_best([*self.finished, *unfinished])
        return [beam for beam in answers if beam.is_possible][:count] or answers[:1]


def advance_together(
    searches: Sequence[BeamSearch], log_probs: Float32s, token_ids: Ids, describe: Sequence[Describe | None]
) -> list[list[int]]:
    """`BeamSearch.advance` for searches of equal `shape`, in as many calls of numpy as one takes.

    log_probs, token_ids: [searches, rows, candidates]; describe: of each.
    """
    if len(searches) == 1:
        # Which may have a way of its own, as one of groups has.
        return [searches[0].advance(log_probs[0], token_ids[0], describe[0])]
    return _advance_equals(searches, log_probs, token_ids, describe)


def _advance_equals(
    searches: Sequence[BeamSearch], log_probs: Float32s, token_ids: Ids, describe: Sequence[Describe | None]
) -> list[list[int]]:
    first, (count, num_rows, width) = searches[0], log_probs.shape
    assert num_rows == len(first.running) and not any(search.done for search in searches)
    if first.length == 0:
        # All beams begin as the same text. All but one start hopeless, or they would stay the same for ever.
        parents = np.zeros(first.num_beams, dtype=np.int64)
        scores = np.full((count, first.num_beams), NEVER, dtype=np.float32)
        scores[:, 0] = 0.0
    else:
        parents = np.arange(num_rows)
        scores = np.array([[beam.score for beam in search.running] for search in searches], dtype=np.float32)
    totals = (log_probs[:, parents] + scores[:, :, None]).reshape(count, -1)
    best = np.argsort(-totals, axis=1, kind="stable")[:, : first.num_candidates]
    totals = np.take_along_axis(totals, best, axis=1)
    rows = parents[best // width]
    tokens = token_ids[np.arange(count)[:, None], rows, best % width].tolist()
    own_rows = rows.tolist()
    ends = []
    for search, its_rows, its_tokens in zip(searches, own_rows, tokens, strict=True):
        search.length += 1
        at_limit = search.length >= search.max_new_tokens
        texts = [beam.tokens for beam in search.running]
        ends.append(
            [at_limit or search.ends(texts[row], token) for row, token in zip(its_rows, its_tokens, strict=True)]
        )
    going_on = np.where(np.array(ends), totals + NEVER, totals)
    survivors = np.argsort(-going_on, axis=1, kind="stable")[:, : first.num_beams].tolist()
    return [
        search._take(*found)
        for search, *found in zip(searches, totals, own_rows, tokens, ends, going_on, survivors, describe, strict=True)
    ]
