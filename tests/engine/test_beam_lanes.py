"""When a beam group leaves its lanes, each beam gets a block table with the slots of its own text.

In lanes, as on a CUDA device, beam i writes to the block table i, whatever its text is. Afterwards, beams with equal
texts in a full block share this block."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from models.config import AttentionConfig
from models.steps.kv_cache import KVCache
from server.engine.beams.beam_lanes import BeamLanes
from server.engine.beams.beam_search import Beam
from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.sequences.sequence import CachedSequence, SequenceGroup
from tests.ipc.one_row import one_row

SIZE = 4
PROMPT = [1, 2, 3]
LAYERS = [AttentionConfig(num_heads=2, num_kv_heads=2, head_dim=3, scale=1.0, causal=True)] * 2


def group_of(tables: BlockTables, num_beams: int, length: int, chance: random.Random) -> SequenceGroup:
    """A group whose beams share their full blocks, and differ in the last token, which is not computed yet.

    length: number of computed tokens after the prompt.
    """
    message = one_row(0, "m", PROMPT, max_new_tokens=200, num_beams=num_beams)
    group = SequenceGroup(message, message.rows[0], False, 0.0)
    common = [chance.randrange(10, 99) for _ in range(length)]
    pool, computed = tables.self_pool, len(PROMPT) + length
    shared = pool.allocate(computed // SIZE)
    group.sequences = []
    for beam in range(num_beams):
        table = (pool.share(shared) if beam else list(shared)) + pool.allocate(1)
        group.sequences.append(CachedSequence([*PROMPT, *common, 100 + beam], computed, table))
    assert group.beams is not None
    group.beams.running = [Beam([*common, 100 + beam]) for beam in range(num_beams)]
    return group


def slot(row: CachedSequence, position: int) -> int:
    return row.block_table[position // SIZE] * SIZE + position % SIZE


class Device:
    """Simulates what a device does with lanes. cache: slot → all tokens of a text up to this slot."""

    def __init__(self, group: SequenceGroup) -> None:
        self.group = group
        self.texts = [tuple(row.tokens) for row in group.sequences]
        self.cache: dict[int, tuple[int, ...]] = {}
        for row in group.sequences:
            for position in range(row.num_computed_tokens):
                self.cache[slot(row, position)] = tuple(row.tokens[: position + 1])

    def step(self, tables: BlockTables, chance: random.Random) -> None:
        """Run a step: write the last token of each beam to its lane, and choose random next beams."""
        group = self.group
        assert tables.extend_each(group.sequences) and group.beams is not None
        for row, text in zip(group.sequences, self.texts, strict=True):
            self.cache[slot(row, row.num_computed_tokens)] = text
            row.num_computed_tokens += 1
        parents = [chance.randrange(len(self.texts)) for _ in self.texts]
        tokens = [chance.randrange(200, 999) for _ in self.texts]
        self.texts = [(*self.texts[parent], token) for parent, token in zip(parents, tokens, strict=True)]
        group.beams.running_beams.extend(parents, tokens, np.zeros(len(parents), dtype=np.float32), None)
        tables.fork(group, parents)
        tables.publish(group)


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 13])
@pytest.mark.parametrize("length", [1, 2, 4, 5])
@pytest.mark.parametrize("num_beams", [2, 3, 5])
def test_each_beam_has_its_text_again(num_beams: int, length: int, steps: int) -> None:
    chance = random.Random(100 * steps + 10 * length + num_beams)
    tables = BlockTables(BlockManager(120, SIZE), None, prefix_cache=True)
    pool, group = tables.self_pool, group_of(tables, num_beams, length, chance)
    device = Device(group)
    tables.enter_lanes(group)
    for _ in range(steps):
        device.step(tables, chance)
        assert pool.published_blocks == 0, "blocks with tokens of several texts"
    copies = tables.leave_lanes(group)
    assert group.lanes is None
    if copies is not None:
        assert len(set(copies.destinations.tolist())) == len(copies.destinations)
        moved = [device.cache[source] for source in copies.sources.tolist()]
        device.cache |= dict(zip(copies.destinations.tolist(), moved, strict=True))
    computed = len(PROMPT) + length + steps
    for row, text in zip(group.sequences, device.texts, strict=True):
        assert tuple(row.tokens) == text and row.num_computed_tokens == computed == len(text) - 1
        assert [device.cache[slot(row, at)] for at in range(computed)] == [text[: at + 1] for at in range(computed)]
    lists = [row.block_table for row in group.sequences]
    held = [block for table in lists for block in table]
    assert all(pool.references(block) == held.count(block) for block in held)
    assert pool.used_blocks == len(set(held))
    # Beams with the same text in a full block share this block, as without lanes.
    full = computed // SIZE
    texts = {text[: (block + 1) * SIZE] for text in device.texts for block in range(full)}
    assert len({block for table in lists for block in table[:full]}) == len(texts) or steps == 0
    last = [table[full] for table in lists if len(table) > full]
    assert len(set(last)) == len(last) and all(pool.references(block) == 1 for block in last)
    assert group.writable_tokens <= len(lists[0]) * SIZE
    before = list(map(list, lists))
    tables.make_writable(group)
    assert [table[: len(own)] for table, own in zip(lists, before, strict=True)] == before, "a block is still shared"
    tables.publish(group)
    assert pool.published_blocks == (len(texts) if full else 0)
    tables.release(group)
    assert pool.used_blocks == 0


def test_ancestors() -> None:
    lanes = BeamLanes(5, 3)
    for parents in ([0, 0, 2], [1, 2, 2], [0, 0, 1]):
        lanes.follow(parents)
    # The third step computed the beams in lanes 0, 0 and 1, the second one in 1, 1 and 2, and the first in 0, 0 and 2.
    assert lanes.ancestors().tolist() == [[0, 0, 2], [1, 1, 2], [0, 0, 1]]


def test_a_group_in_lanes_is_not_computed_again() -> None:
    tables = BlockTables(BlockManager(20, SIZE), None)
    group = group_of(tables, 2, 3, random.Random(1))
    tables.enter_lanes(group)
    with pytest.raises(AssertionError, match="lanes"):
        tables.release_for_recompute(group)
    tables.release(group)
    assert group.lanes is None and tables.self_pool.used_blocks == 0


def test_slots_are_read_before_they_are_written() -> None:
    cache = KVCache(LAYERS, 4, 2, torch.float32, torch.device("cpu"))
    for tensor in cache.tensors:
        tensor.copy_(torch.randn(tensor.shape))
    before = [tensor.flatten(0, 1).clone() for tensor in cache.tensors]
    cache.copy_slots(torch.tensor([1, 5, 5]), torch.tensor([5, 1, 7]))
    for old, tensor in zip(before, cache.tensors, strict=True):
        expected = old.clone()
        expected[[5, 1, 7]] = old[[1, 5, 5]]
        assert torch.equal(tensor.flatten(0, 1), expected)


def test_a_cache_by_slot_is_the_same_memory() -> None:
    cache = KVCache(LAYERS, 4, 8, torch.float32, torch.device("cpu"))
    view = cache.by_slot()
    assert (view.num_blocks, view.block_size, cache.num_blocks, cache.block_size) == (32, 1, 4, 8)
    key, value = torch.randn(2, 1, 2, 3)
    view.write(1, torch.tensor([19]), key, value)
    assert torch.equal(cache.keys[1][2, 3], key[0]) and torch.equal(cache.values[1][2, 3], value[0])
    assert torch.equal(view.keys[1][19, 0], key[0]) and not bool(cache.keys[0].any())
