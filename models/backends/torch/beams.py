"""Choice of the next beams of beam searches, and the cache slots of their texts: the reference, in plain torch.

Only steps that are captured as CUDA graphs use these operations. This reference reads tensors on the host, which a
kernel must not do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.torch.logits_top_k import sort_keys

NEVER = -1e9
"""Added to the score of a continuation with an end token, so that all other continuations rank before it.

It equals `server.engine.beams.running_beams.NEVER`.
"""
MAX_CANDIDATES = 63
"""Largest number of continuations that a beam search on the device considers in a step."""
ADVANCES, NOT_FINITE, NO_TOKEN_LEFT = 0, 1, 2
"""State of a beam search after a step: it continues, a logit is not finite, or no continuation is possible."""
NUM_SEARCH_COLUMNS = 3
"""Number of rows before the end tokens in the argument `searches` of `choose_beams`."""


class Beams(NamedTuple):
    """The beams that a step has chosen, one in each row.

    tokens: [rows], int64: last token. parents: [rows], int64: the row of the same step whose text the beam continues.
    scores: [rows], float32: sum of log-probabilities.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor


class StepSearches(NamedTuple):
    """The beam searches of a step, with one entry each.

    first_rows, num_beams: row of the first beam, and number of beams. The beams of a search are in consecutive rows.
    num_candidates: number of continuations that the search considers, at most MAX_CANDIDATES and the vocabulary.
    end_ids: tokens that end a text.
    """

    first_rows: Sequence[int]
    num_beams: Sequence[int]
    num_candidates: Sequence[int]
    end_ids: Sequence[Sequence[int]]

    def columns(self) -> NDArray[np.int64]:
        """These fields as one array, [3 + ends, searches], int64: the argument `searches` of `choose_beams`."""
        most = max(map(len, self.end_ids), default=0)
        ends = [[*ids, *[-1] * (most - len(ids))] for ids in self.end_ids]
        numbers = np.array([self.first_rows, self.num_beams, self.num_candidates], dtype=np.int64)
        return np.concatenate([numbers, np.array(ends, dtype=np.int64).reshape(len(ends), most).T])


class SearchResults(NamedTuple):
    """The continuations that each search considers, best first.

    states: state of each search: ADVANCES, NOT_FINITE or NO_TOKEN_LEFT.
    totals: [searches, candidates], float32, sums of log-probabilities.
    beams, tokens: [searches, candidates], int64: index of the continued beam within its search, and new token.
    If a search considers fewer continuations than `candidates`, its remaining entries have no meaning.
    """

    states: list[int]
    totals: NDArray[np.float32]
    beams: NDArray[np.int64]
    tokens: NDArray[np.int64]

    @classmethod
    def of(cls, numbers: NDArray[np.int64]) -> SearchResults:
        """Unpack the integers that `TorchBeams.choose_beams` returns.

        numbers: [searches, 1 + 2 * candidates], int64.
        """
        codes, bits = np.split(numbers[:, 1:], 2, axis=1)
        totals = bits.astype(np.int32).view(np.float32)
        return cls(numbers[:, 0].tolist(), totals, codes >> 32, codes & 0xFFFFFFFF)


class TorchBeams:
    """Beam searches whose beams stay on the device."""

    def choose_beams(
        self,
        log_probs: Tensor,
        token_ids: Tensor,
        is_finite: Tensor,
        scores: Tensor,
        searches: Tensor,
        num_candidates: int,
        beams: Beams,
    ) -> Tensor:
        """Choose the next beams of each search, as `server.engine.beams.beam_search` does.

        A search considers the best continuations of all its beams together; among equal scores, the first beam comes
        first. Its next beams are the best continuations without an end token, followed, if these are too few, by the
        best continuations with an end token.

        log_probs, token_ids: [rows, k], float32 and int64: best continuations of each row, best first.
        is_finite: [rows], bool: whether all logits of the row are finite.
        scores: [rows], float32: sum of log-probabilities of each row.
        searches: [3 + ends, searches], int64: first row, number of rows, and number of considered continuations (at
            most k) of each search; then its end tokens, filled up with -1.
        num_candidates: the largest number of considered continuations of a search.
        beams: memory for the next beams. Rows that belong to no search are not written.
        Returns [searches, 1 + 2 * num_candidates], int64, with these columns:
            1: ADVANCES, NOT_FINITE if a logit of the search is not finite, or NO_TOKEN_LEFT if no continuation is
            possible;
            num_candidates: the considered continuations, best first: `(index of the beam << 32) + token`;
            num_candidates: the sum of log-probabilities of each continuation, as the bits of a float32 number.
        """
        results = torch.zeros(searches.shape[1], 1 + 2 * num_candidates, dtype=torch.int64, device=scores.device)
        for result, (first, num_beams, count, *ends) in zip(results, searches.t().tolist(), strict=True):
            own = slice(first, first + num_beams)
            values, ids = log_probs[own, :count], token_ids[own, :count].flatten()
            totals = (values + scores[own, None]).flatten()
            best = _ranked(totals)[:count]
            totals, tokens, parents = totals[best], ids[best], best // count
            is_end = (tokens[:, None] == torch.tensor(ends, device=tokens.device, dtype=torch.int64)).any(1)
            ranked = torch.where(is_end, totals + NEVER, totals)
            chosen = _ranked(ranked)[:num_beams]
            beams.tokens[own] = tokens[chosen]
            beams.parents[own] = first + parents[chosen]
            beams.scores[own] = ranked[chosen]
            if not bool(is_finite[own].all()):
                result[0] = NOT_FINITE
            elif float(values[:, 0].max()) == -torch.inf:
                result[0] = NO_TOKEN_LEFT
            result[1 : 1 + count] = (parents << 32) + tokens
            result[1 + num_candidates :][:count] = totals.view(torch.int32).long()
        return results

    def follow_beams(
        self, tables: Tensor, beams: Beams, scores: Tensor, places: Tensor, slots: Tensor, key_lens: Tensor
    ) -> None:
        """Update the cache slots of each row: the slots of the text that its beam continues, then a new token's slot.

        tables: [rows, width], int32: cache slot of each token of each row; changed in place.
        beams: the beams that the previous step has chosen.
        scores: [rows], float32: receives the score of each row's beam.
        places: [rows], int64: for each row, index of its beam in `beams`. A row with an index beyond the end of `beams`
            keeps its slots, and row i then gets the score `beams.scores[i]`.
        slots: [rows], int64: slot of the new token of each row.
        key_lens: [rows], int64: number of tokens of each row, including the new token; 0 for an unused row.
        """
        for_rows = torch.arange(len(places), device=places.device)
        is_chosen = places < len(beams.parents)
        at = torch.where(is_chosen, places, for_rows)
        scores.copy_(beams.scores[at])
        old = tables[torch.where(is_chosen, beams.parents[at], for_rows)]
        columns = torch.arange(tables.shape[1], device=tables.device)[None]
        new = torch.where(columns == key_lens[:, None] - 1, slots[:, None].int(), old)
        tables.copy_(torch.where(columns < key_lens[:, None], new, tables))


def _ranked(values: Tensor) -> Tensor:
    """Indices of values, the largest first. Of equal values, the first one comes first. NaN comes last.

    values: [n], float32.
    """
    return sort_keys(values[None])[0].argsort(descending=True)
