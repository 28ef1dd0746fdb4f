"""Beam search on log-probabilities: candidates in, surviving beams out. Imports no torch.

Gives the same tokens as `generate(num_beams=...)` of `transformers` 5:

- Each step considers the best `max(2, 1 + end ids) * num_beams` continuations of all beams together, so that at least
  `num_beams` of them have no end token. The best `num_beams` continuations without an end token keep running.
- Only the best `num_beams` continuations may become finished hypotheses. The best `num_beams` hypotheses are kept.
- The score is `sum of log-probabilities / length ** length_penalty`. The sum and the length include the end token.
- `early_stopping=True` ends the search when `num_beams` hypotheses are finished. Otherwise the search ends when the
  best running beam cannot beat the worst kept hypothesis. The beam's score is computed with its present length
  (`False`), or with the maximum length if the length penalty favours long answers (`"never"`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.engine.beams.running_beams import LEAST_POSSIBLE, NEVER, Beam, Describe, Float32s, RunningBeams
from server.engine.beams.stop_texts import StopTexts
from server.ipc.wire.logprobs import TokenLogprob

Ids = NDArray[np.int64]
MIN_PARTITIONED = 4_096
"""With fewer candidates, sorting all of them is faster than finding the best ones first."""


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
    """Beam search for one request. `advance` makes one step; `done` is True when the search has ended.

    num_beams: number of beams.
    max_new_tokens: length at which every hypothesis ends.
    end_ids: tokens that end a hypothesis.
    length_penalty: exponent of the length by which the score of a hypothesis is divided.
    early_stopping: when the search ends (True, False or "never"); the module docstring has the rules.
    stop_texts: ends hypotheses that contain a stop string. Set before the first step; None if there are none.
    """

    stop_texts: StopTexts | None = None
    further_tokens: Sequence[Sequence[int]] = ()
    """For each running beam, tokens whose log-probabilities `advance` needs in addition to the best candidates."""

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
        self.end_id_array = np.array(sorted(end_ids), dtype=np.int64)
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.num_candidates = max(2, 1 + len(end_ids)) * num_beams
        """Candidates per row that `advance` needs; fewer only if the vocabulary is smaller."""
        self.running_beams = RunningBeams([Beam()])
        self.finished: list[Beam] = []
        self.length = 0
        self.done = False
        self._agreed = 0

    def advance(self, log_probs: Float32s, token_ids: Ids, describe: Describe | None = None) -> list[int]:
        """Advance the search by one token.

        log_probs: [rows, candidates], float32: best continuations of each running beam after logits processors, best
            first. One row in the first step, `num_beams` later.
        token_ids: [rows, candidates], int64: tokens of the candidates.
        describe: returns the log-probability to report for a row and a token; None if none are reported.
        Returns the parent row of each running beam. The new token of beam i is the last one in `running[i].tokens`.
        """
        return _advance_equals([self], log_probs[None], token_ids[None], [describe])[0]

    @property
    def shape(self) -> Hashable:
        """A value that is equal for searches that `advance_together` can advance together."""
        return self.length == 0, self.num_beams, self.num_candidates, self.end_ids

    @property
    def running(self) -> list[Beam]:
        """The running beams as hypotheses, best first."""
        return self.running_beams.beams()

    @running.setter
    def running(self, beams: Sequence[Beam]) -> None:
        self.running_beams = RunningBeams(beams)

    def _keep_ended(self, candidates: _Candidates, describe: Describe | None) -> None:
        """Keep the hypotheses that end with one of the best `num_beams` candidates. Call it before the beams change.

        describe: returns the log-probability to report for a row and a token; None if none are reported.
        """
        texts, totals = self.running_beams.texts, candidates.totals[: self.num_beams]
        scores, possible = totals / self._penalty(self.length), (totals > LEAST_POSSIBLE).tolist()
        ended = []
        for score, is_possible, row, token, ends in zip(scores, possible, *candidates[1:], strict=False):
            if ends and score >= NEVER:
                logprobs = [] if describe is None else [*self.running_beams.logprobs[row], describe(row, token)]
                ended.append(Beam([*texts[row], token], score, logprobs, is_possible))
        self.finished = self._keep_best([*self.finished, *ended])

    def ends(self, tokens: Sequence[int], token: int) -> bool:
        """Whether `token` after `tokens` ends a hypothesis, apart from the length limit."""
        return token in self.end_ids or (self.stop_texts is not None and self.stop_texts.ends(tokens, token))

    def _may_improve(self) -> bool:
        """Whether further steps can still improve the finished hypotheses, as judged by `early_stopping`."""
        score = self.running_beams.scores[0]
        return bool(score > -np.inf) if len(self.finished) < self.num_beams else self._may_win(score)

    def _may_win(self, score: np.float32) -> bool:
        """Whether a running beam can still replace the worst of `num_beams` finished hypotheses.

        `early_stopping` decides at which length the beam is judged; True means that no beam can.

        score: sum of log-probabilities of the beam.
        """
        if self.early_stopping is True:
            return False
        longest = self.early_stopping == "never" and self.length_penalty > 0
        penalty = self._penalty(self.max_new_tokens if longest else self.length)
        return bool(score / penalty > self.finished[-1].score)

    def _penalty(self, length: int) -> np.float32:
        with np.errstate(over="ignore"):
            return np.float32(np.float64(length) ** self.length_penalty)

    def _keep_best(self, beams: Sequence[Beam]) -> list[Beam]:
        return sorted(beams, key=lambda beam: -beam.score)[: self.num_beams]

    def agreed_prefix(self) -> list[int]:
        """The tokens with which the best hypothesis is certain to begin. The prefix never becomes shorter.

        While the search runs, it is the common prefix of the running beams and the best finished hypothesis. Other
        finished hypotheses cannot win.
        """
        if self.done:
            self._agreed = len(self.finished[0].tokens) if self.finished else self._agreed
            return self.finished[0].tokens if self.finished else self.running_beams.texts[0][: self._agreed]
        scored = zip(self.running_beams.texts, self.running_beams.scores.tolist(), strict=True)
        texts = [text for text, score in scored if score > -np.inf]
        texts += [self.finished[0].tokens] if self.finished else []
        if not texts:
            return self.running_beams.texts[0][: self._agreed]
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
    """Advance searches of equal `shape` with as many numpy calls as one search needs.

    log_probs: [searches, rows, candidates], float32. token_ids: the same shape, int64.
    describe: for each search, a function that returns the log-probability to report for a row and a token; None if the
        search reports no log-probabilities.
    Returns, for each search, the parent row of each running beam.
    """
    if len(searches) == 1:
        # `GroupSearch` overrides `advance`.
        return [searches[0].advance(log_probs[0], token_ids[0], describe[0])]
    return _advance_equals(searches, log_probs, token_ids, describe)


def _advance_equals(
    searches: Sequence[BeamSearch], log_probs: Float32s, token_ids: Ids, describe: Sequence[Describe | None]
) -> list[list[int]]:
    return advance_by_candidates(searches, *_best_candidates(searches, log_probs, token_ids), describe)


def advance_by_candidates(
    searches: Sequence[BeamSearch], totals: Float32s, rows: Ids, tokens: Ids, describe: Sequence[Describe | None]
) -> list[list[int]]:
    """Advance searches of equal `shape` by the best continuations of all their beams, best first.

    totals: [searches, candidates], float32: sums of log-probabilities.
    rows, tokens: [searches, candidates], int64: row of the parent beam, and new token.
    describe: for each search, a function that returns the log-probability to report for a row and a token; None if the
        search reports no log-probabilities. Returns, for each search, the parent row of each running beam.
    """
    ends = (tokens[:, :, None] == searches[0].end_id_array).any(axis=2)
    for index, search in enumerate(searches):
        search.length += 1
        if search.length >= search.max_new_tokens:
            ends[index] = True
        elif search.stop_texts is not None:
            texts, pairs = search.running_beams.texts, zip(rows[index].tolist(), tokens[index].tolist(), strict=True)
            ends[index] = [search.ends(texts[row], token) for row, token in pairs]
    num_beams, all_end = searches[0].num_beams, [False] * len(searches)
    if ends.any():
        for index in ends[:, :num_beams].any(axis=1).nonzero()[0].tolist():
            own = (array[index].tolist() for array in (rows, tokens, ends))
            searches[index]._keep_ended(_Candidates(totals[index], *own), describe[index])
        all_end = ends.all(axis=1).tolist()
        scores = np.where(ends, totals + NEVER, totals)
        order = np.arange(len(searches))[:, None], (-scores).argsort(axis=1, kind="stable")
        totals, rows, tokens = scores[order], rows[order], tokens[order]
    parents: list[list[int]] = rows[:, :num_beams].tolist()
    beams = parents, tokens[:, :num_beams].tolist(), totals[:, :num_beams], describe
    for search, all_ended, *own_beams in zip(searches, all_end, *beams, strict=True):
        search.running_beams.extend(*own_beams)
        search.done = all_ended or not search._may_improve()
    return parents


def _best_candidates(searches: Sequence[BeamSearch], log_probs: Float32s, token_ids: Ids) -> tuple[Float32s, Ids, Ids]:
    """The best continuations of all beams of each search, best first.

    log_probs, token_ids: [searches, rows, candidates]: best continuations of each running beam.
    Returns sums of log-probabilities, rows of the parents, and tokens: [searches, candidates] each.
    """
    first, count = searches[0], len(searches)
    assert log_probs.shape[1] == len(first.running_beams) and not any(search.done for search in searches)
    is_first = first.length == 0
    if is_first:
        # All beams begin with the same text. All but the first start with score NEVER, so that they become different.
        log_probs, token_ids = log_probs.repeat(first.num_beams, axis=1), token_ids.repeat(first.num_beams, axis=1)
        scores = np.full(log_probs.shape[:2], NEVER, dtype=np.float32)
        scores[:, 0] = 0.0
    else:
        scores = np.concatenate([search.running_beams.scores for search in searches]).reshape(log_probs.shape[:2])
    totals = (log_probs + scores[:, :, None]).reshape(count, -1)
    best = largest(totals, first.num_candidates)
    places = np.arange(count)[:, None], best
    rows = np.zeros_like(best) if is_first else best // log_probs.shape[2]
    return totals[places], rows, token_ids.reshape(count, -1)[places]


def largest(values: Float32s, count: int) -> Ids:
    """Indices of the largest values of each row, the largest first. Of equal values, the earlier ones come first.

    values: [rows, n], float32, without NaN. count: number of indices of each row, at most n.
    Returns [rows, count], int64.
    """
    negative = -values
    if values.shape[1] < MIN_PARTITIONED:
        return negative.argsort(axis=1, kind="stable")[:, :count]
    # Finding the limit takes a fraction of the time of sorting all values.
    limits = np.partition(negative, count - 1, axis=1)[:, count - 1]
    found = []
    for row, limit in zip(negative, limits, strict=True):
        places = (row <= limit).nonzero()[0]
        found.append(places[row[places].argsort(kind="stable")[:count]])
    return np.stack(found)
