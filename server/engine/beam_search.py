"""Beam search on log-probabilities: candidates in, surviving beams out. Imports no torch.

Gives the same tokens as `generate(num_beams=...)` of `transformers` 5:

- Each step considers the best `max(2, 1 + end ids) * num_beams` continuations of all beams together, so that enough of
  them do not end. Continuations without an end token keep running.
- Only the best `num_beams` continuations may become finished hypotheses. The best `num_beams` hypotheses are kept.
- The score is `sum of log-probabilities / length ** length_penalty`; both include the end token.
- `early_stopping=True` ends the search with the `num_beams`-th hypothesis. Otherwise it ends when the best running beam
  cannot beat the worst kept hypothesis: at its present length (`False`), or at the maximum length if the length penalty
  favours long answers (`"never"`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.engine.stop_texts import StopTexts
from server.ipc.logprobs import TokenLogprob

Float32s = NDArray[np.float32]
Ids = NDArray[np.int64]
Describe = Callable[[int, int], TokenLogprob]
"""Maps (row of this step, token id) to the log-probability to report."""

ZERO = np.float32(0.0)
ONE = np.float32(1)
NEVER = np.float32(-1e9)
"""Score of impossible beams: far below any real score, and finite, so that sums do not become NaN."""


@dataclass(slots=True)
class Beam:
    """One hypothesis.

    tokens: new tokens.
    score: sum of log-probabilities of a running beam, final score of a finished one.
    logprobs: log-probabilities to report, one for each token; empty if not requested.
    is_possible: False for a beam that only fills a row, if there are fewer possible tokens than beams.
    """

    tokens: list[int] = field(default_factory=list)
    score: np.float32 = ZERO
    logprobs: list[TokenLogprob] = field(default_factory=list)
    is_possible: bool = True


class _Candidates(NamedTuple):
    """The best continuations of all beams of a search, best first.

    totals: [candidates], float32, sums of log-probabilities.
    rows, tokens: row of the parent beam and new token of each candidate.
    ends: whether the candidate ends its hypothesis.
    """

    totals: Float32s
    rows: list[int]
    tokens: list[int]
    ends: list[bool]


class BeamSearch:
    """One beam search.

    num_beams: number of beams.
    max_new_tokens: length at which every hypothesis ends.
    end_ids: tokens that end a hypothesis.
    length_penalty, early_stopping: see the module.
    stop_texts: ends hypotheses that contain a stop string. Set before the first step, or None.
    """

    stop_texts: StopTexts | None = None
    further_tokens: Sequence[Sequence[int]] = ()
    """For each running beam, tokens whose log-probabilities are needed in addition to the best ones."""

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
        """Candidates per row that `advance` needs; fewer only if the vocabulary is smaller."""
        self.running: list[Beam] = [Beam()]
        self.finished: list[Beam] = []
        self.length = 0
        self.done = False
        self._agreed = 0

    def advance(self, log_probs: Float32s, token_ids: Ids, describe: Describe | None = None) -> list[int]:
        """Advance the search by one token.

        log_probs: [rows, candidates], float32: best continuations of each running beam after logits processors, best
            first. One row in the first step, `num_beams` later.
        token_ids: [rows, candidates], int64: tokens of the candidates.
        describe: called for each surviving token if log-probabilities are reported, else None.
        Returns the parent row of each running beam; its new token is the last of `running[i].tokens`.
        """
        return _advance_equals([self], log_probs[None], token_ids[None], [describe])[0]

    @property
    def shape(self) -> Hashable:
        """A value that is equal for searches that `advance_together` can advance together."""
        return len(self.running), self.num_beams, self.num_candidates, self.length == 0

    def _select(self, candidates: _Candidates, survivors: list[int], describe: Describe | None) -> list[int]:
        """Replace the beams by their best continuations. survivors: indices of the candidates that keep running.

        Returns the parent row of each running beam.
        """

        def child(index: int, total: np.float32, penalty: np.float32 = ONE) -> Beam:
            row, token = candidates.rows[index], candidates.tokens[index]
            parent = old[row]
            logprobs = [*parent.logprobs, describe(row, token)] if describe is not None else []
            return Beam([*parent.tokens, token], total / penalty, logprobs, bool(total > NEVER / 2))

        old, totals, ends = self.running, candidates.totals, candidates.ends
        ended = [i for i in range(min(self.num_beams, len(ends))) if ends[i]]
        if ended:
            penalty = self._penalty(self.length)
            newly = [child(i, totals[i], penalty) for i in ended]
            self.finished = self._keep_best([*self.finished, *(beam for beam in newly if beam.score >= NEVER)])
        self.running = [child(i, totals[i] + NEVER if ends[i] else totals[i]) for i in survivors]
        self.done = all(ends) or not self._may_improve()
        return [candidates.rows[i] for i in survivors]

    def ends(self, tokens: Sequence[int], token: int) -> bool:
        """Whether `token` after `tokens` ends a hypothesis, apart from the length limit."""
        return token in self.end_ids or (self.stop_texts is not None and self.stop_texts.ends(tokens, token))

    def _may_improve(self) -> bool:
        """Whether further steps can still improve the finished hypotheses, as judged by `early_stopping`."""
        if len(self.finished) < self.num_beams:
            return bool(self.running[0].score > -np.inf)
        return self._may_win(self.running[0])

    def _may_win(self, beam: Beam) -> bool:
        """Whether a running beam can still replace the worst of `num_beams` hypotheses, as `early_stopping` judges."""
        if self.early_stopping is True:
            return False
        longest = self.early_stopping == "never" and self.length_penalty > 0
        penalty = self._penalty(self.max_new_tokens if longest else self.length)
        return bool(beam.score / penalty > self.finished[-1].score)

    def _penalty(self, length: int) -> np.float32:
        with np.errstate(over="ignore"):
            return np.float32(np.float64(length) ** self.length_penalty)

    def _keep_best(self, beams: Sequence[Beam]) -> list[Beam]:
        return sorted(beams, key=lambda beam: -beam.score)[: self.num_beams]

    def agreed_prefix(self) -> list[int]:
        """The tokens with which the best hypothesis is certain to begin. Grows from step to step and never shrinks.

        It is the common prefix of the running beams and the best finished hypothesis; other finished ones cannot win.
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
        """Log-probabilities of the tokens of `agreed_prefix`; empty if they are not reported."""
        prefix = self.agreed_prefix()
        for beam in (*self.finished[:1], *self.running):
            if beam.tokens[: len(prefix)] == prefix:
                return beam.logprobs[: len(prefix)]
        return []

    def hypotheses(self, count: int) -> list[Beam]:
        """The best hypotheses, best first: at least one, and at most `count`.

        If the search was interrupted, running beams count as hypotheses of their present length.
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
    """Advance searches of equal `shape` with the same number of numpy calls as a single one needs.

    log_probs: [searches, rows, candidates], float32. token_ids: the same shape, int64.
    describe: one for each search, or None.
    Returns for each search the result of `BeamSearch.advance`.
    """
    if len(searches) == 1:
        # `GroupSearch` overrides `advance`.
        return [searches[0].advance(log_probs[0], token_ids[0], describe[0])]
    return _advance_equals(searches, log_probs, token_ids, describe)


def _advance_equals(
    searches: Sequence[BeamSearch], log_probs: Float32s, token_ids: Ids, describe: Sequence[Describe | None]
) -> list[list[int]]:
    first, (count, num_rows, width) = searches[0], log_probs.shape
    assert num_rows == len(first.running) and not any(search.done for search in searches)
    if first.length == 0:
        # All beams begin with the same text. All but the first start with score NEVER, so that they become different.
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
    running_totals = np.where(np.array(ends), totals + NEVER, totals)
    survivors = np.argsort(-running_totals, axis=1, kind="stable")[:, : first.num_beams].tolist()
    candidates = map(_Candidates, totals, own_rows, tokens, ends)
    return [search._select(*found) for search, *found in zip(searches, candidates, survivors, describe, strict=True)]
