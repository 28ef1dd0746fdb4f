"""Finds and copies the rows of a decoder output that belong to a sequence group.

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
    """Number of rows of the decoder output that belong to a group."""
    return len(group.sequences) + len(group.sequences[0].draft)


def logits_request(groups: Sequence[SequenceGroup]) -> LogitsRequest:
    """One `LogitsRequest` for all rows of a step: the largest k of any group, with log-sum-exp if a group needs it.

    Of wide searches only the first candidates are asked for, see `server.engine.device.wide_searches`.
    """
    counts = [group.params.top_logprobs for group in groups if group.params.logprobs]
    searches = [group.beams.num_candidates for group in groups if group.beams is not None]
    counts += [min(FIRST_CANDIDATES, count) for count in searches] if are_wide(groups) else searches
    return LogitsRequest(max(1, *counts) if counts else 1, bool(counts))


def step_logits_request(groups: Sequence[SequenceGroup], max_rows: int) -> LogitsRequest | None:
    """The request with which the decoder computes top-k and log-sum-exp of the logits within the step, for `select`.

    None if no row needs logits, or if more than `max_rows` rows need them: `select` then computes logits in parts.
    """
    return logits_request(groups) if 0 < sum(map(num_output_rows, groups)) <= max_rows else None


def parts_of(groups: Sequence[SequenceGroup], most: int) -> Iterator[tuple[list[SequenceGroup], int]]:
    """Split the groups, in order, into parts of at most `most` rows. Yields each part and its number of rows."""
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
    """The rows of one group with their logits, as copies.

    output: decoder output of the step. groups: the sequence groups that get a token in this step.
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
    """The output of a step without the rows of some groups.

    groups: all groups that get a token in this step. left_out: groups whose rows are removed.
    """
    owners = [group for group in groups for _ in range(num_output_rows(group))]
    return _take(output, [index for index, group in enumerate(owners) if group not in left_out])


def _take(output: DecoderOutput, indices: Sequence[int]) -> DecoderOutput:
    """A decoder output with copies of the rows at `indices`."""
    index = to_device(np.array(indices, dtype=np.int64), output.hidden.device)
    hidden, logits, top_k = output
    if top_k is not None:
        logsumexp = None if top_k.logsumexp is None else top_k.logsumexp[index]
        top_k = LogitsTopK(top_k.values[index], top_k.ids[index], logsumexp, top_k.is_finite[index])
    return DecoderOutput(hidden[index], None if logits is None else logits[index], top_k)


def rows_at(logits: Tensor, indices: Sequence[int]) -> Tensor:
    """The rows of `logits` at `indices`: the tensor itself if these are all rows in order, else a copy."""
    if len(indices) == logits.shape[0] and list(indices) == list(range(len(indices))):
        return logits
    return logits[to_device(indices, logits.device)]


def replaced(values: Tensor, indices: Sequence[int], others: Tensor) -> Tensor:
    """`values` with the rows at `indices` replaced by `others`. Changes neither tensor, but may return one of them."""
    if not indices:
        return values
    if len(indices) == values.shape[0] and list(indices) == list(range(len(indices))):
        return others
    return values.index_copy(0, to_device(indices, values.device), others)
