"""The batch of a step equals one that is built row by row, token by token."""

from __future__ import annotations

import random

import pytest
import torch

from models.steps.batch import DecoderBatch
from server.engine.device.decoder_batches import BatchBuilder, BatchRows
from server.engine.device.slots import padded_tables
from server.engine.scheduling.schedule import Schedule, ScheduledRow
from server.engine.sequences.sequence import CachedSequence, SequenceGroup
from tests.ipc.one_row import one_row

SIZE = 4
CPU = torch.device("cpu")


def make_group(chance: random.Random, number: int, beams: int, computed: int, tokens: int) -> SequenceGroup:
    """A group whose sequences have the same number of tokens, and KV blocks for one more token."""
    message = one_row(number, "m", [5] * chance.randint(1, 9), [1], max_new_tokens=20, num_beams=beams)
    group = SequenceGroup(message, message.rows[0], True, 0.0)
    group.rope_length = chance.randint(1, 20)
    group.cross_block_table = chance.sample(range(100), -(-group.num_source_tokens // SIZE))
    group.sequences = [
        CachedSequence(
            [chance.randrange(50) for _ in range(tokens)], computed, chance.sample(range(100), tokens // SIZE + 1)
        )
        for _ in range(beams)
    ]
    return group


def make_schedule(chance: random.Random, drafts: bool, chunks: bool) -> Schedule:
    schedule = Schedule()
    for number in range(5):
        tokens = chance.randint(2, 13)
        group = make_group(chance, number, chance.choice([1, 3]), tokens - 1, tokens)
        if drafts and len(group.sequences) == 1:
            group.sequences[0].draft = [chance.randrange(50) for _ in range(chance.randint(0, 3))]
            group.sequences[0].block_table += chance.sample(range(100), 1)
        schedule.decode(group)
    for number in range(5, 8) if chunks else ():
        tokens, computed = chance.randint(6, 13), chance.randint(0, 5)
        group = make_group(chance, number, 1, computed, tokens)
        schedule.chunks.append(ScheduledRow(group, group.sequences[0], chance.randint(1, tokens - computed)))
    schedule.count_tokens()
    return schedule


def check(batch: DecoderBatch, rows: list[ScheduledRow], rope: bool) -> None:
    """Compare a batch with one that is built from its rows, token by token. rope: whether rotary lengths are needed."""
    token_ids, positions, slots, lengths, outputs = [], [], [], [], []
    for row in rows:
        sequence, start = row.sequence, row.sequence.num_computed_tokens
        given = [*sequence.tokens[start : start + row.num_tokens], *sequence.draft]
        for position, token in enumerate(given, start):
            token_ids.append(token)
            positions.append(position)
            slots.append(sequence.block_table[position // SIZE] * SIZE + position % SIZE)
            lengths.append(max(row.group.rope_length, position + 1))
        outputs.append(1 + len(sequence.draft) if row.needs_logits else 0)
    counts = [row.num_step_tokens for row in rows]
    ends = [row.sequence.num_computed_tokens + count for row, count in zip(rows, counts, strict=True)]
    assert (batch.token_ids.tolist(), batch.positions.tolist()) == (token_ids, positions)
    assert batch.slot_mapping.tolist() == slots
    assert (batch.query_lens, batch.key_lens) == (tuple(counts), tuple(ends))
    assert (batch.output_lens or batch.query_lens) == tuple(outputs)
    assert (batch.rope_lengths.tolist() if rope else batch.rope_lengths) == (lengths if rope else None)
    assert batch.source_lens == tuple(row.group.num_source_tokens for row in rows) and batch.adapters == ()
    for row, end, table, sources in zip(
        rows, ends, batch.block_tables.tolist(), batch.source_block_tables.tolist(), strict=True
    ):
        used = -(-end // SIZE)
        assert table[:used] == row.sequence.block_table[:used]
        assert set(table[used:]) <= set(row.sequence.block_table)
        assert sources[: len(row.group.cross_block_table)] == row.group.cross_block_table
    assert batch.block_tables.shape[1] == -(-max(ends) // SIZE)


@pytest.mark.parametrize("drafts, chunks, rope", [(False, False, False), (False, True, True), (True, True, False)])
@pytest.mark.parametrize("seed", range(8))
def test_a_batch_equals_one_built_row_by_row(seed: int, drafts: bool, chunks: bool, rope: bool) -> None:
    schedule = make_schedule(random.Random(seed), drafts, chunks)
    batch = BatchBuilder(CPU, SIZE, has_sources=True, needs_rope_lengths=rope).build(BatchRows.of(schedule))
    check(batch, schedule.rows, rope)
    assert schedule.num_row_tokens == len(batch.token_ids)
    assert schedule.is_plain or drafts


def test_each_row_has_the_adapter_of_its_group() -> None:
    schedule = make_schedule(random.Random(1), False, False)
    schedule.decoding[1].adapter = "law"
    batch = BatchBuilder(CPU, SIZE, has_sources=True, needs_rope_lengths=False).build(BatchRows.of(schedule))
    assert batch.adapters == tuple(row.group.adapter for row in schedule.rows)
    assert "law" in batch.adapters and "" in batch.adapters


def test_short_tables_are_padded_with_their_first_block() -> None:
    tables = [[3], [4, 5, 6], [7, 8]]
    assert padded_tables(tables).tolist() == [[3, 3, 3], [4, 5, 6], [7, 8, 7]]
    assert padded_tables(tables[1:2]).tolist() == tables[1:2]
