"""Builds the batch of a decoder step: token ids, positions, cache slots and block tables of all rows at once.

A step of many rows leaves little host time per row. The numbers of all rows are therefore computed as arrays, not row
by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from models.steps.batch import DecoderBatch
from server.engine.device.slots import Ids, padded_tables
from server.engine.scheduling.schedule import Schedule
from server.engine.sequences.sequence import CachedSequence, SequenceGroup

Value = TypeVar("Value")


class BatchRows(NamedTuple):
    """The rows of a decoder step, with one list for each property.

    groups: sequence groups of the rows.
    group_rows: number of consecutive rows of each group.
    sequences: sequence of each row.
    starts: position of the first token of each row.
    counts: number of tokens of each row.
    output_counts: how many of the last tokens of each row need logits.
    token_ids: token ids of all rows, in order.
    """

    groups: list[SequenceGroup]
    group_rows: list[int]
    sequences: list[CachedSequence]
    starts: list[int]
    counts: list[int]
    output_counts: list[int]
    token_ids: list[int]

    @classmethod
    def of(cls, schedule: Schedule) -> BatchRows:
        """The rows of a schedule, in their order."""
        if schedule.is_plain:
            rows, others = cls.singles(schedule.decoding, schedule.sequences), schedule.chunks
        else:
            rows, others = cls.singles([], []), schedule.rows
        for row in others:
            sequence, draft = row.sequence, row.sequence.draft
            start = sequence.num_computed_tokens
            rows.groups.append(row.group)
            rows.group_rows.append(1)
            rows.sequences.append(sequence)
            rows.starts.append(start)
            rows.counts.append(row.num_tokens + len(draft))
            rows.output_counts.append(1 + len(draft) if row.needs_logits else 0)
            rows.token_ids.extend(chain(sequence.tokens[start : start + row.num_tokens], draft))
        return rows

    @classmethod
    def singles(cls, groups: Sequence[SequenceGroup], sequences: Sequence[CachedSequence]) -> BatchRows:
        """Rows that compute the last token of each sequence. sequences: the sequences of the groups, in order."""
        starts, ones = [sequence.num_computed_tokens for sequence in sequences], [1] * len(sequences)
        # Groups of one sequence each need no count.
        single = len(groups) == len(sequences)
        group_rows = list(ones) if single else [len(group.sequences) for group in groups]
        token_ids = [sequence.tokens[-1] for sequence in sequences]
        return cls(list(groups), group_rows, list(sequences), starts, ones, list(ones), token_ids)


class BatchBuilder:
    """Builds the batches of one model.

    device: device of the tensors. block_size: block size of the cache.
    has_sources: whether rows have a source in the cross-attention cache.
    needs_rope_lengths: whether rotary embeddings depend on the length of the text.
    """

    def __init__(self, device: torch.device, block_size: int, has_sources: bool, needs_rope_lengths: bool) -> None:
        self._device, self._block_size = device, block_size
        self._has_sources, self._needs_rope_lengths = has_sources, needs_rope_lengths

    def build(self, rows: BatchRows) -> DecoderBatch:
        """Build the decoder batch of a step. rows: at least one."""
        size, counts, num_tokens = self._block_size, rows.counts, len(rows.token_ids)
        columns = np.empty((4 if self._needs_rope_lengths else 3, num_tokens), dtype=np.int64)
        columns[0] = rows.token_ids
        positions, row_of = columns[1], np.arange(len(counts))
        if num_tokens == len(counts):
            positions[:] = rows.starts
            ends = positions + 1
        else:
            lengths = np.array(counts)
            row_of, ends = row_of.repeat(lengths), np.array(rows.starts) + lengths
            positions[:] = np.arange(num_tokens) + (ends - lengths.cumsum())[row_of]
        tables = padded_tables([sequence.block_table for sequence in rows.sequences])
        columns[2] = tables[row_of, positions // size] * size + positions % size
        if self._needs_rope_lengths:
            rope_lengths = np.array([group.rope_length for group in rows.groups]).repeat(rows.group_rows)
            columns[3] = np.maximum(rope_lengths[row_of], positions + 1)
        # One copy to the device for all columns.
        on_device = self._tensor(columns).unbind()
        used_blocks = -(-int(ends.max()) // size)
        source_lens: tuple[int, ...] = ()
        source_tables = None
        if self._has_sources:
            source_lens = tuple(_for_rows([group.num_source_tokens for group in rows.groups], rows.group_rows))
            each = padded_tables([group.cross_block_table for group in rows.groups])
            source_tables = self._tensor(each if len(each) == len(counts) else each.repeat(rows.group_rows, axis=0))
        named = [group.adapter for group in rows.groups]
        adapters = tuple(_for_rows(named, rows.group_rows)) if any(named) else ()
        return DecoderBatch(
            token_ids=on_device[0],
            positions=on_device[1],
            query_lens=tuple(counts),
            key_lens=tuple(ends.tolist()),
            slot_mapping=on_device[2],
            block_tables=self._tensor(tables if tables.shape[1] == used_blocks else tables[:, :used_blocks].copy()),
            source_lens=source_lens,
            source_block_tables=source_tables,
            adapters=adapters,
            rope_lengths=on_device[3] if self._needs_rope_lengths else None,
            output_lens=None if rows.output_counts == counts else tuple(rows.output_counts),
        )

    def _tensor(self, array: Ids) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)


def _for_rows(values: Sequence[Value], group_rows: Sequence[int]) -> Iterator[Value]:
    """Repeat the value of each group for its rows. values: one per group. group_rows: number of rows of each group."""
    return chain.from_iterable(map(repeat, values, group_rows))
