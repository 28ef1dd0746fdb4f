"""Candidates of wide beam searches: few of each row first, then all of the rows that may have more of the best ones.

A search considers twice its beams or more, over all rows together, and nearly all of them are among the first few of
their rows. Finding as many in each row would take longer than a product with the vocabulary. The result is the same:
a row is searched again if its last known candidate is not worse than the worst of those that the search considers.
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
"""Candidates of each row that are found first."""

BestOf = Callable[[list[int], int], tuple[Tensor, Tensor]]
"""Finds the k best candidates of rows: (rows, k) to log-probabilities and token ids, [rows, k] each."""


def are_wide(groups: Sequence[SequenceGroup]) -> bool:
    """Whether all groups are wide searches whose candidates can be found in two passes.

    Not at the first token, which all beams of a search take from one row; not with log-probabilities to report; and not
    if the logits of some groups are processed and those of others are not.
    """
    return len({group.tables.change_logits for group in groups}) == 1 and all(
        type(group.beams) is BeamSearch
        and group.beams.length > 0
        and group.beams.num_candidates >= MIN_WIDE
        and not group.params.logprobs
        for group in groups
    )


def widened(values: Tensor, ids: Tensor, groups: Sequence[SequenceGroup], best_of: BestOf) -> tuple[Tensor, Tensor]:
    """The candidates that searches need, from the first ones of each row.

    values, ids: [rows, k], float32 and int64: log-probabilities in descending order, and token ids.
    groups: the groups of the rows, in order.
    Returns [rows, candidates] each. Rows whose other candidates are worse than all that their search considers end with
        minus infinity.
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
    """Rows of which a candidate beyond the known ones may be among those that its search considers.

    values: [rows, k], log-probabilities of the known candidates.
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
