"""Candidates of beam searches that are limited to allowed sequences: only the logits of allowed tokens are read.

The processors would write minus infinity to all other logits, and the best ones would be searched for in whole rows:
two passes over the vocabulary for a few allowed tokens. Here the allowed tokens of each row are gathered and sorted.
The candidates are the same, ties included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models.backends.logits import LogitsTopK
from server.engine.beams.beam_search import BeamSearch, Ids
from server.engine.choosing.logits_processors import ProcessorRow, banned_tokens, forced_token
from server.engine.device.device_copies import to_device
from server.engine.sequences.sequence import SequenceGroup

MAX_SHARE = 16
"""If more than this part (1/16) of all logits are allowed, sorting them would take longer than whole rows do."""


def allowed_candidates(
    logits: Tensor, top_k: LogitsTopK, groups: Sequence[SequenceGroup]
) -> tuple[Tensor, Tensor] | None:
    """The best allowed continuations of the beams of searches; None if the processors have to be applied.

    logits: [rows, vocab], float32, raw; not changed. top_k: their top-k with log-sum-exp. groups: the groups of the
        rows, in order.
    Returns log-probabilities [rows, candidates], float32, in descending order, and token ids [rows, candidates], int64.
        A row with fewer allowed tokens than others ends with minus infinity.
    """
    if not all(map(_is_limited_only, groups)):
        return None
    vocab_size = logits.shape[1]
    keys, start = [], 0
    for group in groups:
        keys.append(_allowed_places(group, vocab_size) + start * vocab_size)
        start += len(group.sequences)
    # A token that ends a text may also continue a sequence. It is one candidate.
    allowed = np.unique(np.concatenate(keys))
    if len(allowed) * MAX_SHARE > logits.numel():
        return None
    rows, tokens = np.divmod(allowed, vocab_size)
    counts = np.bincount(rows, minlength=len(logits))
    columns = np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts)
    searches = [group.beams for group in groups if group.beams is not None]
    # The beams of a search need all its candidates together, at the first token from one row.
    least = max(-(-search.num_candidates // search.num_beams) for search in searches)
    width = max(least, int(counts.max(initial=0)))
    ids, is_missing = np.zeros((len(logits), width), dtype=np.int64), np.ones((len(logits), width), dtype=np.bool_)
    ids[rows, columns], is_missing[rows, columns] = tokens, False
    all_ids = to_device(ids, logits.device)
    values = logits.gather(1, all_ids).masked_fill_(to_device(is_missing, logits.device), -torch.inf)
    # Stable: the ids of a row ascend, and of equal logits the lower id comes first.
    values, order = values.sort(dim=1, descending=True, stable=True)
    most = max(search.num_candidates for search in searches)
    return top_k.log_probs_of(values[:, :most]), all_ids.gather(1, order[:, :most])


def _is_limited_only(group: SequenceGroup) -> bool:
    """Whether the settings of a beam search only ban tokens and limit answers to allowed sequences in this step."""
    params = group.params
    return (
        type(group.beams) is BeamSearch
        and group.tables.only_sequences
        and not params.logprobs
        and not params.processed_logprobs
        and not params.renormalize_logits
        and not any(forced_token(row) is not None for row in _first_and_last(group))
    )


def _first_and_last(group: SequenceGroup) -> list[ProcessorRow]:
    """Settings of up to two beams of a group, for `forced_token`.

    They are the first beam, and the first beam whose text is a complete sequence, if there is one.
    """
    assert group.tables.sequences is not None and group.nodes is not None
    nodes = group.nodes.tolist()
    complete = [node for node in nodes if group.tables.sequences.may_end(node)]
    return [_row(group, node) for node in {*complete[:1], *nodes[:1]}]


def _row(group: SequenceGroup, node: int) -> ProcessorRow:
    return ProcessorRow(group.params, group.max_new_tokens, (), group.num_generated, group.tables, node=node)


def _allowed_places(group: SequenceGroup, vocab_size: int) -> Ids:
    """Places of the allowed logits of a group, `row * vocab_size + token`: [places], int64."""
    assert group.tables.sequences is not None and group.nodes is not None
    rows, tokens = group.tables.sequences.next_tokens(group.nodes)
    is_allowed = tokens < vocab_size
    if banned := banned_tokens(_row(group, -1), is_forced=False):
        is_allowed &= ~np.isin(tokens, banned)
    places: Ids = (rows * vocab_size + tokens)[is_allowed]
    return places
