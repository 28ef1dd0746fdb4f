"""Beam search whose hypotheses must contain terms (lexically constrained decoding with dynamic beam allocation).

The candidates of a step are the best continuations of all beams together, the best one of each beam, and every token
that continues or begins a missing term. Candidates whose texts contain equally many tokens of terms form a group, and
the beams are divided among the groups. Otherwise texts with few terms, whose scores are better, would displace the
other texts. A hypothesis can end only if its text has all terms.

Source: Post and Vilar 2018, arXiv:1804.06609, section 4; the division of the beams as in Sockeye. Terms are found in
the characters of a text, not in its tokens (`RequiredTerms`). If no terms are missing, a step gives the same result as
in `BeamSearch`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from server.engine.beams.beam_search import BeamSearch, Ids
from server.engine.beams.required_terms import RequiredTerms, TermState
from server.engine.beams.running_beams import LEAST_POSSIBLE, NEVER, Beam, Describe, Float32s

ONE = np.float32(1)


@dataclass(slots=True)
class _Candidate:
    """A continuation of a beam.

    total: sum of log-probabilities.
    row, token: row of the beam and new token.
    state: which required terms, and parts of terms, the text with this token contains.
    ends: whether the token ends the hypothesis, apart from the length limit.
    """

    total: np.float32
    row: int
    token: int
    state: TermState
    ends: bool


def divide_beams(num_beams: int, counts: Sequence[int]) -> list[int]:
    """Divide the beams of a search among groups of candidates. Returns the number of beams for each group.

    counts: number of candidates in each group. The texts of group i contain i tokens of the required terms.

    Every group gets an equal share; the last group also gets the remainder. A group with too few candidates passes
    unused beams to the group before it. Beams that the first group cannot use go to groups with more candidates, the
    last group first.
    """
    share = num_beams // len(counts)
    given = [share] * len(counts)
    given[-1] += num_beams - share * len(counts)
    surplus = 0
    for index in reversed(range(len(counts))):
        wanted = given[index] + surplus
        given[index] = min(wanted, counts[index])
        surplus = wanted - given[index]
    for index in reversed(range(len(counts))):
        more = min(surplus, counts[index] - given[index])
        given[index] += more
        surplus -= more
    return given


class TermSearch(BeamSearch):
    """One beam search whose hypotheses must contain the required terms.

    terms: the required terms, and the state of the text before the first new token.
    The other arguments are those of `BeamSearch`.
    """

    def __init__(
        self,
        num_beams: int,
        max_new_tokens: int,
        end_ids: frozenset[int],
        length_penalty: float,
        early_stopping: bool | Literal["never"],
        terms: RequiredTerms,
    ) -> None:
        super().__init__(num_beams, max_new_tokens, end_ids, length_penalty, early_stopping)
        self._terms = terms
        self._states = [terms.start]
        """For each running beam, which required terms and parts of terms its text contains."""
        self._find_further_tokens()

    @property
    def shape(self) -> Hashable:
        """A unique value, because this search cannot be advanced together with another one."""
        return id(self)

    def advance(self, log_probs: Float32s, token_ids: Ids, describe: Describe | None = None) -> list[int]:
        """Advance the search by one token.

        log_probs, token_ids: [rows, candidates], float32 and int64: best continuations of each running beam, best
            first, then its `further_tokens`. An entry of minus infinity is not a candidate.
        describe: returns the log-probability to report for a row and a token; None if none are reported.
        Returns the parent row of each running beam.
        """
        old = self.running
        assert not self.done and len(log_probs) == len(old)
        self.length += 1
        candidates = self._candidates(old, log_probs, token_ids)
        if not candidates:
            self.length, self.done = self.length - 1, True
            return list(range(len(old)))
        legal = list(filter(self._is_legal, candidates))
        at_limit = self.length >= self.max_new_tokens or not legal
        self._finish(old, legal or candidates, at_limit, describe)
        going_on = [] if at_limit else [candidate for candidate in legal if not candidate.ends]
        chosen = self._choose(going_on)
        # The number of rows stays the same. Rows without a legal candidate get impossible beams.
        taken = set(map(id, chosen))
        rest = [candidate for candidate in candidates if id(candidate) not in taken] or candidates
        fill = [rest[i % len(rest)] for i in range(self.num_beams - len(chosen))]
        self._states = [candidate.state for candidate in (*chosen, *fill)]
        self.running = [
            *(self._child(old, candidate, candidate.total, describe) for candidate in chosen),
            *(self._child(old, candidate, candidate.total + NEVER, describe) for candidate in fill),
        ]
        self._find_further_tokens()
        self.done = not chosen or not self._may_improve()
        return [candidate.row for candidate in (*chosen, *fill)]

    def _candidates(self, running: Sequence[Beam], log_probs: Float32s, token_ids: Ids) -> list[_Candidate]:
        """The candidates of a step, best first."""
        totals = log_probs + (self.running_beams.scores[:, None] if self.length > 1 else np.float32(0.0))
        width = log_probs.shape[1] - max(map(len, self.further_tokens))
        rows = [row for row, beam in enumerate(running) if beam.is_possible]
        together = np.argsort(-totals[:, :width], axis=None, kind="stable")[: self.num_candidates]
        places = [divmod(place, width) for place in together.tolist()]
        places += [(row, width + column) for row in rows for column in range(len(self.further_tokens[row]))]
        found: dict[tuple[int, int], _Candidate] = {}

        def candidate(row: int, column: int) -> _Candidate:
            token = int(token_ids[row, column])
            state = self._terms.after(self._states[row], token)
            return _Candidate(totals[row, column], row, token, state, self.ends(running[row].tokens, token))

        for row, column in places:
            if running[row].is_possible and totals[row, column] > -np.inf:
                possible = candidate(row, column)
                found.setdefault((row, possible.token), possible)
        for row in rows:
            ordered = (candidate(row, column) for column in range(width) if totals[row, column] > -np.inf)
            best = next(filter(self._is_legal, ordered), None)
            if best is not None:
                found.setdefault((row, best.token), best)
        return sorted(found.values(), key=lambda scored: (-scored.total, scored.row, scored.token))

    def _is_legal(self, candidate: _Candidate) -> bool:
        return not candidate.ends or self._is_complete(candidate.state)

    def _is_complete(self, state: TermState) -> bool:
        return state.progress == self._terms.num_tokens

    def _finish(
        self, running: Sequence[Beam], candidates: Sequence[_Candidate], at_limit: bool, describe: Describe | None
    ) -> None:
        """Keep the hypotheses that end in this step.

        Only the best `num_beams` candidates with all terms may end. If no text can become longer, none has all terms,
        and no hypothesis is finished, the texts with the most tokens of terms end.
        """
        complete = [candidate for candidate in candidates if self._is_complete(candidate.state)][: self.num_beams]
        ended = [candidate for candidate in complete if candidate.ends or at_limit]
        if at_limit and not ended and not self.finished:
            ended = sorted(candidates, key=lambda candidate: -candidate.state.progress)[: self.num_beams]
            most = max((candidate.state.progress for candidate in ended), default=0)
            ended = [candidate for candidate in ended if candidate.state.progress == most]
        penalty = self._penalty(self.length)
        newly = [self._child(running, candidate, candidate.total, describe, penalty) for candidate in ended]
        self.finished = self._keep_best([*self.finished, *(beam for beam in newly if beam.score >= NEVER)])

    def _choose(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Choose the candidates that become the running beams, best first.

        candidates: all candidates that do not end their hypothesis, best first.
        """
        groups: list[list[_Candidate]] = [[] for _ in range(self._terms.num_tokens + 1)]
        for candidate in candidates:
            groups[candidate.state.progress].append(candidate)
        counts = divide_beams(self.num_beams, list(map(len, groups)))
        chosen = [candidate for group, count in zip(groups, counts, strict=True) for candidate in group[:count]]
        return sorted(chosen, key=lambda candidate: (-candidate.total, candidate.row, candidate.token))

    def _child(
        self,
        old: Sequence[Beam],
        candidate: _Candidate,
        total: np.float32,
        describe: Describe | None,
        penalty: np.float32 = ONE,
    ) -> Beam:
        parent = old[candidate.row]
        logprobs = [*parent.logprobs, describe(candidate.row, candidate.token)] if describe is not None else []
        possible = bool(total > LEAST_POSSIBLE)
        return Beam([*parent.tokens, candidate.token], total / penalty, logprobs, possible)

    def _may_improve(self) -> bool:
        """Whether further steps can still improve the finished hypotheses.

        Once `num_beams` are finished, only running beams with all terms count: other beams cannot end yet.
        """
        if len(self.finished) < self.num_beams:
            return True
        complete = [beam for beam, state in zip(self.running, self._states, strict=True) if self._is_complete(state)]
        return bool(complete) and self._may_win(complete[0].score)

    def _find_further_tokens(self) -> None:
        self.further_tokens = [
            self._terms.next_tokens(state) if beam.is_possible else []
            for beam, state in zip(self.running, self._states, strict=True)
        ]

    def hypotheses(self, count: int) -> list[Beam]:
        """At most `count` hypotheses, best first.

        If the search was interrupted, the running beams follow the finished hypotheses, those with the most tokens of
        the terms first.
        """
        if self.done and self.finished:
            return self.finished[:count]
        penalty = self._penalty(max(self.length, 1))
        running = sorted(
            zip(self._states, self.running, strict=True), key=lambda pair: (-pair[0].progress, -pair[1].score)
        )
        unfinished = [replace(beam, score=beam.score / penalty) for _, beam in running if beam.is_possible]
        return [*self.finished, *unfinished][:count]
