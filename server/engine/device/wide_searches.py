"""Finds the candidates of wide beam searches in two passes, which takes less time than one.

A search considers at least twice as many candidates as it has beams, over all its rows together. Nearly all of them are
among the first few candidates of their rows. Finding that many in each row would take longer than the product with the
vocabulary. The first pass therefore finds few candidates of each row. The second pass searches a row again if the last
candidate found there is good enough to be considered, so the result is the same as in one pass.
See docs/decisions/0169-stored-sequences.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from server.engine.beams.beam_search import BeamSearch
from server.engine.beams.running_beams import Float32s
from server.engine.sequences.sequence import SequenceGroup

MIN_WIDE = 64
"""A search with at least this many candidates is wide."""
FIRST_CANDIDATES = 16
"""Number of candidates that the first pass finds in each row."""

BestOf = Callable[[list[int], int], tuple[Tensor, Tensor]]
"""Function that finds the best candidates of some rows.

Arguments: row indices, and k, the number of candidates of a row.
Returns log-probabilities and token ids, [rows, k] each.
"""


def are_wide(groups: Sequence[SequenceGroup]) -> bool:
    """Whether all groups are wide searches whose candidates can be found in two passes.

    False at the first token, because all beams of a search then continue one row; if log-probabilities are reported;
    and if logits processors change the logits of some groups but not of all.
    """
    return len({group.tables.change_logits for group in groups}) == 1 and all(
        type(group.beams) is BeamSearch
        and group.beams.length > 0
        and group.beams.num_candidates >= MIN_WIDE
        and not group.params.logprobs
        for group in groups
    )


def widened(values: Tensor, ids: Tensor, groups: Sequence[SequenceGroup], best_of: BestOf) -> tuple[Tensor, Tensor]:
    """Complete the candidates of a step: the second of the two passes.

    values, ids: [rows, k], float32 and int64: the first candidates of each row, with log-probabilities in descending
        order.
    groups: the groups of the rows, in order.
    best_of: finds the best candidates of some rows.
    Returns values and ids, both [rows, candidates]. A row that is not searched again ends with minus infinity.
    """
    width = max(group.beams.num_candidates for group in groups if group.beams is not None)
    first = values.shape[1]
    if first >= width:
        return values, ids
    places = _rows_with_more(values.cpu().numpy(), groups)
    all_values = torch.cat([values, values.new_full((len(values), width - first), -torch.inf)], 1)
    all_ids = torch.cat([ids, ids.new_zeros(len(ids), width - first)], 1)
    if places:
        index = torch.tensor(places, device=values.device)
        all_values[index], all_ids[index] = best_of(places, width)
    return all_values, all_ids


def _rows_with_more(values: Float32s, groups: Sequence[SequenceGroup]) -> list[int]:
    """Indices of the rows that must be searched again.

    A further candidate of such a row may be among the candidates that its search considers.

    values: [rows, k], log-probabilities of the candidates found in the first pass.
    """
    found: list[int] = []
    start = 0
    for group in groups:
        search = group.beams
        assert search is not None
        end = start + len(search.running_beams)
        totals = values[start:end] + search.running_beams.scores[:, None]
        least = -np.inf
        if totals.size >= search.num_candidates:
            least = -np.partition(-totals.ravel(), search.num_candidates - 1)[search.num_candidates - 1]
        may_have = (totals[:, -1] >= least) & (values[start:end, -1] > -np.inf)
        found += (start + may_have.nonzero()[0]).tolist()
        start = end
    return found
