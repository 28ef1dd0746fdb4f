"""Finds, copies and counts the rows of a step's decoder output that belong to a sequence group.

Each group that gets a token has one row per beam, or one row per sampling position of its single sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from models.backends.logits import DecoderOutput, LogitsRequest, LogitsTopK
from server.engine.device.device_copies import to_device
from server.engine.device.transformer_protocol import TransformerProtocol
from server.engine.device.wide_searches import FIRST_CANDIDATES, are_wide
from server.engine.sequences.sequence import SequenceGroup


def num_output_rows(group: SequenceGroup) -> int:
    """Number of rows that a group has in the decoder output: one per sequence, and one per draft token."""
    return len(group.sequences) + len(group.sequences[0].draft)


def candidates_per_row(groups: Sequence[SequenceGroup]) -> int:
    """Number of continuations to find in each row, as the beam search that needs most; 1 without beam searches.

    If all groups are wide searches, only the first candidates are found (`server.engine.device.wide_searches`).
    """
    counts = [group.beams.num_candidates for group in groups if group.beams is not None]
    most = max(counts, default=1)
    return min(FIRST_CANDIDATES, most) if are_wide(groups) else most


def logits_request(groups: Sequence[SequenceGroup]) -> LogitsRequest:
    """The `LogitsRequest` for all rows of a step.

    It asks for as many tokens as the group that needs most, and for log-sum-exp if any group needs it. If the logits of
    all beams are changed by processors, their candidates are found after that, and only the reported tokens are needed.
    """
    searches = [group for group in groups if group.beams is not None]
    reported = [group.params.top_logprobs for group in groups if group.params.logprobs]
    counts = [1, *reported]
    if not all(group.tables.change_logits for group in searches):
        counts.append(candidates_per_row(groups))
    return LogitsRequest(max(counts), bool(searches or reported))


def step_logits_request(groups: Sequence[SequenceGroup], max_rows: int) -> LogitsRequest | None:
    """The `LogitsRequest` with which a step also computes logits, top-k and log-sum-exp for `select`.

    None if no row needs logits, or if more than `max_rows` rows do. In the second case, `select` computes logits in
    parts.
    """
    return logits_request(groups) if 0 < sum(map(num_output_rows, groups)) <= max_rows else None


def parts_of(groups: Sequence[SequenceGroup], most: int) -> Iterator[tuple[list[SequenceGroup], int]]:
    """Split the groups, in order, into parts with at most `most` output rows. Yields each part and its number of rows.

    A group with more rows is a part of its own.
    """
    part: list[SequenceGroup] = []
    num_rows = 0
    for group in groups:
        own = num_output_rows(group)
        if part and num_rows + own > most:
            yield part, num_rows
            part, num_rows = [], 0
        part.append(group)
        num_rows += own
    if part:
        yield part, num_rows


def output_of(
    output: DecoderOutput, model: TransformerProtocol, groups: Sequence[SequenceGroup], group: SequenceGroup
) -> DecoderOutput:
    """Copy the output rows of one group. Their logits are computed if the step has not computed any.

    output: decoder output of the step. groups: all groups with rows in the output, in order. group: the one to copy.
    """
    start = sum(map(num_output_rows, groups[: groups.index(group)]))
    own = _take(output, range(start, start + num_output_rows(group)))
    if own.logits is None:
        logits, top_k = model.logits_top_k(own.hidden, logits_request([group]))
        own = DecoderOutput(own.hidden, logits.clone(), top_k)
    return own


def output_without(
    output: DecoderOutput, groups: Sequence[SequenceGroup], left_out: Sequence[SequenceGroup]
) -> DecoderOutput:
    """Copy the decoder output of a step without the rows of some groups.

    groups: all groups with rows in the output, in order. left_out: groups whose rows are left out.
    """
    owners = [group for group in groups for _ in range(num_output_rows(group))]
    return _take(output, [index for index, group in enumerate(owners) if group not in left_out])


def _take(output: DecoderOutput, indices: Sequence[int]) -> DecoderOutput:
    """Copy the rows at `indices` of a decoder output."""
    index = to_device(np.array(indices, dtype=np.int64), output.hidden.device)
    hidden, logits, top_k, _ = output
    if top_k is not None:
        logsumexp = None if top_k.logsumexp is None else top_k.logsumexp[index]
        top_k = LogitsTopK(top_k.values[index], top_k.ids[index], logsumexp, top_k.is_finite[index])
    return DecoderOutput(hidden[index], None if logits is None else logits[index], top_k)


def rows_at(logits: Tensor, indices: Sequence[int]) -> Tensor:
    """The rows of `logits` at `indices`.

    Returns `logits` itself if these are all its rows in order, otherwise a copy.
    """
    if len(indices) == logits.shape[0] and list(indices) == list(range(len(indices))):
        return logits
    return logits[to_device(indices, logits.device)]


def replaced(values: Tensor, indices: Sequence[int], others: Tensor) -> Tensor:
    """The rows of `values`, with row `indices[i]` replaced by row i of `others`. Both arguments stay unchanged.

    Returns `values` itself if nothing is replaced, and `others` itself if all rows are replaced in order.
    """
    if not indices:
        return values
    if len(indices) == values.shape[0] and list(indices) == list(range(len(indices))):
        return others
    return values.index_copy(0, to_device(indices, values.device), others)
