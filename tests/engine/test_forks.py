"""A fork of beams changes as little as possible: the first child of a beam keeps its sequence, tokens and blocks."""

from __future__ import annotations

import itertools

import pytest

from server.engine.beams.beam_search import Beam
from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.sequences.sequence import CachedSequence, SequenceGroup
from tests.ipc.one_row import one_row

SIZE, BEAMS = 4, 3
PROMPT = [1, 2]


def group_of(tables: BlockTables, texts: list[list[int]]) -> SequenceGroup:
    """A group whose beams have different texts, which are all computed, and share no blocks."""
    message = one_row(0, "m", PROMPT, max_new_tokens=20, num_beams=BEAMS)
    group = SequenceGroup(message, message.rows[0], False, 0.0)
    pool = tables.self_pool
    group.sequences = [
        CachedSequence([*PROMPT, *text], len(PROMPT) + len(text), pool.allocate(pool.blocks_for(2 + len(text))))
        for text in texts
    ]
    assert group.beams is not None
    group.beams.running = [Beam(text) for text in texts]
    return group


def fork(tables: BlockTables, group: SequenceGroup, parents: list[int]) -> None:
    assert group.beams is not None
    old = group.beams.running
    group.beams.running = [Beam([*old[parent].tokens, 50 + place]) for place, parent in enumerate(parents)]
    tables.fork(group, parents)


@pytest.mark.parametrize("length", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("parents", itertools.product(range(BEAMS), repeat=BEAMS))
def test_every_pattern_of_parents(parents: tuple[int, ...], length: int) -> None:
    tables = BlockTables(BlockManager(40, SIZE), None)
    texts = [[*range(10, 10 + length - 1), 30 + row] for row in range(BEAMS)]
    group = group_of(tables, texts)
    old, blocks = list(group.sequences), [list(row.block_table) for row in group.sequences]
    fork(tables, group, list(parents))
    done, pool = len(PROMPT) + length, tables.self_pool
    for place, (row, parent) in enumerate(zip(group.sequences, parents, strict=True)):
        assert row.tokens == [*PROMPT, *texts[parent], 50 + place] and row.num_computed_tokens == done
        if parents.index(parent) == place:
            assert row is old[parent] and row.block_table == blocks[parent]
        assert row.block_table[: done // SIZE] == blocks[parent][: done // SIZE], "full blocks are shared"
    assert len(set(map(id, group.sequences))) == BEAMS
    assert pool.used_blocks == len({block for row in group.sequences for block in row.block_table})
    copies = tables.make_writable(group)
    last = [row.block_table[done // SIZE] for row in group.sequences]
    assert len(set(last)) == BEAMS and all(pool.references(block) == 1 for block in last)
    assert len(copies) <= (BEAMS - len(set(parents)) if done % SIZE else 0)
    tables.release(group)
    assert pool.used_blocks == 0


def test_a_step_without_new_blocks_looks_at_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = BlockTables(BlockManager(40, SIZE), None)
    group = group_of(tables, [[10], [11], [12]])
    fork(tables, group, [0, 1, 2])
    assert tables.make_writable(group) == [] and group.writable_tokens == SIZE

    def unexpected(*arguments: object) -> None:
        raise AssertionError("the blocks of the group are writable")

    with monkeypatch.context() as patch:
        patch.setattr(BlockManager, "make_writable", unexpected)
        patch.setattr(BlockManager, "blocks_to_write", unexpected)
        assert not tables.lacks_blocks(group) and tables.make_writable(group) == []
    for row in group.sequences:
        row.num_computed_tokens = len(row.tokens)
    fork(tables, group, [0, 0, 2])
    assert group.writable_tokens == 0, "the first two beams share a full block, and need new ones"
    assert tables.make_writable(group) == [] and group.writable_tokens == 2 * SIZE
    tables.release_for_recompute(group)
    assert group.writable_tokens == 0 and tables.self_pool.used_blocks == 0
