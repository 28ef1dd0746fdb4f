"""Diverse beam search: groups of beams are advanced one after the other, with a penalty for equal tokens.

Source: Vijayakumar et al. 2018, arXiv:1610.02424, algorithm 1 with Hamming diversity. In every step, the score of a
token is reduced by `diversity_penalty` for each beam of an earlier group that has taken this token in the same step.
The penalty stays in the score of the beam. Each group is a `BeamSearch` with its own hypotheses. Imports no torch.

The penalty is subtracted after the logits processors. It does not apply to a beam that has only one possible token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Literal

import numpy as np

from server.engine.beams.beam_search import BeamSearch, Ids
from server.engine.beams.required_terms import RequiredTerms
from server.engine.beams.running_beams import Describe, Float32s
from server.engine.beams.term_search import TermSearch
from server.ipc.wire.params import GenerationParams


def make_search(
    params: GenerationParams, max_new_tokens: int, end_ids: frozenset[int], terms: RequiredTerms | None = None
) -> BeamSearch | None:
    """The beam search of a request, or None if `params.num_beams` is 1.

    max_new_tokens: length at which every hypothesis ends.
    end_ids: tokens that end a hypothesis.
    terms: terms that each hypothesis must contain; None if there are no such terms.
    """
    if params.num_beams == 1:
        return None
    if terms is not None:
        return TermSearch(
            params.num_beams, max_new_tokens, end_ids, params.length_penalty, params.early_stopping, terms
        )
    if params.num_beam_groups == 1:
        return BeamSearch(params.num_beams, max_new_tokens, end_ids, params.length_penalty, params.early_stopping)
    return GroupSearch(
        params.num_beams,
        params.num_beam_groups,
        params.diversity_penalty,
        max_new_tokens,
        end_ids,
        params.length_penalty,
        params.early_stopping,
    )


class GroupSearch(BeamSearch):
    """Diverse beam search with `num_groups` groups of `num_beams / num_groups` beams.

    running: beams of the groups that are not done, group by group.
    finished: best hypotheses of all groups.
    """

    def __init__(
        self,
        num_beams: int,
        num_groups: int,
        diversity_penalty: float,
        max_new_tokens: int,
        end_ids: frozenset[int],
        length_penalty: float,
        early_stopping: bool | Literal["never"],
    ) -> None:
        super().__init__(num_beams, max_new_tokens, end_ids, length_penalty, early_stopping)
        assert num_beams % num_groups == 0
        size = num_beams // num_groups
        self.diversity_penalty = diversity_penalty
        self.groups = [
            BeamSearch(size, max_new_tokens, end_ids, length_penalty, early_stopping) for _ in range(num_groups)
        ]
        # Each beam of an earlier group penalises at most one token of a row. One further candidate for each such beam
        # can replace these tokens.
        self.num_candidates = self.groups[0].num_candidates + num_beams - size

    @property
    def shape(self) -> Hashable:
        """A key that no other search has: `advance_together` never joins this search with another one."""
        return id(self)

    def advance(self, log_probs: Float32s, token_ids: Ids, describe: Describe | None = None) -> list[int]:
        """Advance by one token each group whose search has not ended.

        log_probs, token_ids: [rows, candidates], float32 and int64: best continuations of each running beam, best
            first. The rows are the running beams of these groups, in the order of the groups.
        describe: returns the log-probability to report for a row and a token; None if none are reported.
        Returns the parent row of each running beam.
        """
        assert not self.done and log_probs.shape[0] == len(self.running_beams)
        for group in self.groups:
            group.stop_texts = self.stop_texts
        is_first, is_last = self.length == 0, self.length + 1 >= self.max_new_tokens
        taken: Counter[int] = Counter()
        parents: list[list[int]] = []
        active = [group for group in self.groups if not group.done]
        start = 0
        for group in active:
            first_row = 0 if is_first else start
            rows = slice(first_row, first_row + len(group.running_beams))
            start = rows.stop
            candidates = self._diverse(log_probs[rows], token_ids[rows], taken, group.num_candidates)
            own = group.advance(*candidates, _shifted(describe, first_row))
            parents.append([first_row + parent for parent in own])
            # At the length limit no beam continues, but each has taken a token.
            taken.update(beam.tokens[-1] for beam in group.running if beam.is_possible or is_last)
        self.length += 1
        self.finished = self._keep_best([beam for group in self.groups for beam in group.finished])
        self.done = all(group.done for group in self.groups)
        going_on = [(group, own) for group, own in zip(active, parents, strict=True) if self.done or not group.done]
        self.running = [beam for group, _ in going_on for beam in group.running]
        return [parent for _, own in going_on for parent in own]

    def _diverse(self, log_probs: Float32s, token_ids: Ids, taken: Counter[int], count: int) -> tuple[Float32s, Ids]:
        """The best `count` candidates of each row after the diversity penalty, best first.

        taken: how often earlier groups have taken each token in this step.
        Returns log-probabilities and token ids: [rows, count] each.
        """
        if taken:
            times = np.array([[taken[token] for token in row] for row in token_ids.tolist()], dtype=np.float32)
            has_choice = (log_probs > -np.inf).sum(axis=1, keepdims=True) > 1
            log_probs = log_probs - np.where(has_choice, times * np.float32(self.diversity_penalty), np.float32(0.0))
            order = np.argsort(-log_probs, axis=1, kind="stable")
            log_probs = np.take_along_axis(log_probs, order, axis=1)
            token_ids = np.take_along_axis(token_ids, order, axis=1)
        return log_probs[:, :count], token_ids[:, :count]


def _shifted(describe: Describe | None, first_row: int) -> Describe | None:
    """Wrap `describe` for the beams of one group, whose rows are numbered from 0.

    first_row: index of the group's first row among the rows of all groups.
    """
    return describe and (lambda row, token: describe(first_row + row, token))
