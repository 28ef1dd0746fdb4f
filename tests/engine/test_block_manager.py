"""The block manager counts references exactly and keeps free + used == total."""

from __future__ import annotations

import pytest

from server.engine.cache.block_manager import BlockManager, OutOfBlocks


def test_allocate_and_release():
    pool = BlockManager(4, 8)
    blocks = pool.allocate(3)
    assert len(set(blocks)) == 3 and pool.free_blocks == 1 and pool.used_blocks == 3
    with pytest.raises(OutOfBlocks, match="2 KV blocks requested, 1 of 4 are free"):
        pool.allocate(2)
    assert pool.free_blocks == 1
    assert sorted(pool.release(blocks)) == sorted(blocks)
    assert pool.free_blocks == 4


def test_a_shared_block_is_free_when_its_last_owner_leaves():
    pool = BlockManager(4, 8)
    first = pool.allocate(2)
    second = pool.share(first)
    assert pool.release(first) == [] and pool.used_blocks == 2
    assert pool.release(second) == second and pool.used_blocks == 0


@pytest.mark.parametrize("tokens, blocks", [(0, 0), (1, 1), (8, 1), (9, 2)])
def test_blocks_for(tokens, blocks):
    assert BlockManager(4, 8).blocks_for(tokens) == blocks


def test_a_shared_block_is_copied_before_it_is_written():
    pool = BlockManager(8, 4)
    first = pool.allocate(2)
    second, third = pool.share(first), pool.share(first)
    tables = [first, second, third]
    assert pool.blocks_to_write(tables, 5) == 2
    original = first[1]
    copies = [pool.make_writable(table, 5) for table in tables]
    assert copies[0] == (original, first[1]) and copies[1] == (original, second[1]) and copies[2] is None
    assert third[1] == original and len({table[1] for table in tables}) == 3
    assert len({table[0] for table in tables}) == 1
    assert pool.used_blocks == 4


def test_writing_past_the_end_adds_a_block():
    pool = BlockManager(8, 4)
    table = pool.allocate(1)
    assert pool.blocks_to_write([table], 4) == 1
    assert pool.make_writable(table, 4) is None and len(table) == 2


def test_releasing_twice_is_a_bug():
    pool = BlockManager(2, 4)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError):
        pool.release(blocks)


def test_a_published_block_is_found_before_and_after_its_release():
    pool = BlockManager(4, 8)
    blocks = pool.allocate(2)
    for block, key in zip(blocks, (b"a", b"b"), strict=True):
        pool.publish(block, key)
    assert pool.find([b"a", b"b", b"c"]) == blocks and pool.find([b"c", b"b"]) == []
    pool.release(blocks)
    assert pool.free_blocks == 4 and pool.find([b"a", b"b"]) == blocks
    assert pool.share(pool.find([b"a"])) == blocks[:1]
    assert pool.free_blocks == 3 and pool.references(blocks[0]) == 1


def test_the_first_of_two_blocks_with_the_same_key_is_found():
    pool = BlockManager(4, 8)
    first, second = pool.allocate(2)
    pool.publish(first, b"a"), pool.publish(second, b"a")
    assert pool.find([b"a"]) == [first] and not pool.is_published(second)
    pool.forget([first])
    assert pool.find([b"a"]) == []


def test_eviction_starts_with_the_least_recently_used_text_at_its_end():
    pool = BlockManager(5, 8)
    old, new = pool.allocate(2), pool.allocate(2)
    for block, key in zip(old + new, (b"a", b"b", b"c", b"d"), strict=True):
        pool.publish(block, key)
    pool.release(old), pool.release(new)
    pool.release(pool.share(pool.find([b"a", b"b"])))
    taken = pool.allocate(2)
    assert pool.find([b"c"]) == new[:1] and pool.find([b"d"]) == [] and pool.find([b"a", b"b"]) == old
    assert new[1] in taken and pool.free_blocks == 3
    with pytest.raises(OutOfBlocks, match="4 KV blocks requested, 3 of 5 are free"):
        pool.allocate(4)
    assert pool.find([b"a", b"b"]) == old, "a failed allocation must not evict blocks"


def test_a_free_unpublished_block_cannot_be_shared():
    pool = BlockManager(2, 4)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError):
        pool.share(blocks)
    with pytest.raises(AssertionError):
        pool.publish(blocks[0], b"a")
