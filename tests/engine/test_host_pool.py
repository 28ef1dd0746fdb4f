"""Blocks of the prefix cache in host memory: which blocks are kept and found. A found block is never wrong."""

from __future__ import annotations

import random

import pytest

from server.engine.cache.block_tables import BlockTables
from server.engine.cache.host_pool import BLOCKS_TOGETHER, HostPool
from server.engine.sequences import sequence
from tests.engine.simulation import POISON, FakeCopies, Simulation
from tests.engine.test_prefix_cache import add_prompt, run_random_interleaving, run_until_first_token, shared_simulation


def with_host(slots: int = 40, damage: float = 0.0, **sizes) -> Simulation:
    simulation = shared_simulation(**{"blocks": 10, **sizes})
    tables = simulation.scheduler.blocks
    simulation.copies.damage, simulation.copies.lack = damage, 0.0
    tables.host = HostPool(tables.self_pool, slots, simulation.copies)
    return simulation


def run_to_first_token(simulation: Simulation, prompt: list[int], salt: str = "") -> int:
    """Run a prompt until its first token, and end it. Returns the number of cached prompt tokens."""
    group = run_until_first_token(simulation, add_prompt(simulation, prompt, salt))
    simulation.scheduler.remove(group)
    return group.cached_tokens


TEXT, OTHER = list(range(33)), list(range(50, 83))


@pytest.mark.parametrize("chunk", range(2))
@pytest.mark.parametrize("drafts", [False, True])
def test_any_interleaving(chunk, drafts):
    restored = damaged = preemptions = 0
    for seed in range(chunk * 15, chunk * 15 + 15):
        simulation = Simulation(random.Random(f"host{seed}"), cross=False, prefix=True, drafts=drafts, host=True)
        simulation.run_random_events(150)
        host = simulation.scheduler.blocks.host
        assert host.used_slots <= host.num_slots
        restored += host.num_restored
        damaged += host.num_damaged
        preemptions += simulation.scheduler.num_preemptions
    assert restored > 100 and damaged > 5 and preemptions > 20, (restored, damaged, preemptions)


def test_a_prompt_that_left_the_device_is_copied_back():
    simulation = with_host()
    assert run_to_first_token(simulation, TEXT) == 0
    assert run_to_first_token(simulation, OTHER) == 0, "takes the blocks of the first text"
    assert run_to_first_token(simulation, TEXT) == 32
    host = simulation.scheduler.blocks.host
    assert host.num_restored > 0 and host.num_damaged == 0
    spilled = host.num_spilled
    assert run_to_first_token(simulation, OTHER) == 32
    assert run_to_first_token(simulation, TEXT) == 32 and host.num_spilled == spilled, "copies exist already"


def test_without_host_memory_it_is_computed_again():
    """Negative control of the previous test: without host memory, the prompt is computed again."""
    simulation = shared_simulation(blocks=10)
    run_to_first_token(simulation, TEXT), run_to_first_token(simulation, OTHER)
    assert run_to_first_token(simulation, TEXT) < 8


def test_copies_of_another_key_are_not_read():
    simulation = with_host()
    run_to_first_token(simulation, TEXT, "one"), run_to_first_token(simulation, OTHER, "one")
    assert run_to_first_token(simulation, TEXT, "other") == 0
    host = simulation.scheduler.blocks.host
    assert host.num_restored == 0
    assert run_to_first_token(simulation, TEXT, "one") == 32 and host.num_restored > 0


def test_a_damaged_copy_is_computed_again_and_dropped():
    simulation = with_host()
    run_to_first_token(simulation, TEXT), run_to_first_token(simulation, OTHER)
    host = simulation.scheduler.blocks.host
    third = next(slot for slot, content in simulation.copies.slots.items() if content[0] == ("", *TEXT[:9]))
    simulation.copies.slots[third] = [POISON] * 4
    used = host.used_slots
    group = add_prompt(simulation, TEXT)
    schedule = simulation.scheduler.schedule()
    assert group.cached_tokens == 8 and [row.num_tokens for row in schedule.rows] == [25]
    damaged = group.sequences[0].block_table[2]
    assert damaged in simulation.scheduler.blocks.take_blocks_to_clear()[0], "it may contain NaN"
    assert (host.num_damaged, host.num_restored) == (1, 1), "the first block is still on the device"
    assert host.used_slots < used + len(schedule.rows[0].sequence.block_table)
    simulation.compute(schedule)


def test_without_memory_for_copying_the_tokens_are_computed():
    simulation = with_host()
    run_to_first_token(simulation, TEXT), run_to_first_token(simulation, OTHER)
    host = simulation.scheduler.blocks.host
    used, simulation.copies.lack = host.used_slots, 1.0
    group = add_prompt(simulation, TEXT)
    simulation.scheduler.schedule()
    assert group.cached_tokens == 4, "the block that is still on the device"
    assert (host.num_restored, host.num_damaged, host.used_slots) == (0, 0, used)
    assert set(group.sequences[0].block_table[1:8]) <= set(simulation.scheduler.blocks.take_blocks_to_clear()[0])
    simulation.scheduler.remove(group)
    simulation.copies.lack = 0.0
    assert run_to_first_token(simulation, TEXT) == 32 and host.num_restored == 7


def test_the_least_recently_used_copies_are_overwritten():
    simulation = with_host(slots=8)
    for start in range(0, 200, 40):
        run_to_first_token(simulation, list(range(start, start + 33)))
    host = simulation.scheduler.blocks.host
    assert host.used_slots == host.num_slots == 8
    assert run_to_first_token(simulation, TEXT) == 0


def test_few_slots_keep_the_first_blocks_of_a_text():
    simulation = with_host(slots=3)
    run_to_first_token(simulation, TEXT), run_to_first_token(simulation, OTHER)
    assert run_to_first_token(simulation, TEXT) == 12


def test_blocks_are_copied_together():
    simulation = with_host(blocks=40, slots=80)
    for start in (0, 40, 80, 120):
        run_to_first_token(simulation, list(range(start, start + 33)))
    calls = []
    honest = simulation.copies.to_host
    simulation.copies.to_host = lambda blocks, slots: calls.append(len(blocks)) or honest(blocks, slots)
    run_to_first_token(simulation, list(range(160, 165)))
    run_to_first_token(simulation, list(range(170, 175)))
    run_to_first_token(simulation, list(range(180, 240)))
    assert calls and min(calls) >= BLOCKS_TOGETHER


def test_copies_of_a_failed_group_are_dropped():
    simulation = with_host()
    run_to_first_token(simulation, TEXT), run_to_first_token(simulation, OTHER)
    failed = run_until_first_token(simulation, add_prompt(simulation, TEXT))
    simulation.scheduler.remove(failed, corrupt=True)
    assert run_to_first_token(simulation, TEXT) == 0


def test_groups_share_the_blocks_that_were_copied_back():
    simulation = with_host(blocks=20, max_batch_tokens=8)
    run_to_first_token(simulation, TEXT), run_to_first_token(simulation, list(range(50, 120)))
    first, second = add_prompt(simulation, TEXT), add_prompt(simulation, TEXT)
    run_until_first_token(simulation, first), run_until_first_token(simulation, second)
    assert first.cached_tokens == second.cached_tokens == 32
    assert first.sequences[0].block_table[:8] == second.sequences[0].block_table[:8]
    assert simulation.scheduler.blocks.host.num_restored == 6


def plant_copies_that_are_overwritten(monkeypatch):
    """Planted bug: an allocation in host memory may overwrite copies that are about to be read."""
    monkeypatch.setattr(HostPool, "hold", lambda self, keys: self._slots.find(keys))

    def restore(self, slots, keys, blocks):
        is_right = self._copies.to_device(slots, blocks)
        for block, key in zip(blocks, keys, strict=True):
            self._pool.publish(block, key)
        return len(is_right)

    monkeypatch.setattr(HostPool, "restore", restore)


def plant_unread_checksums(monkeypatch):
    honest = FakeCopies.to_device
    monkeypatch.setattr(FakeCopies, "to_device", lambda self, slots, blocks: [True] * len(honest(self, slots, blocks)))


def plant_blocks_cleared_after_their_copy(monkeypatch):
    """Planted bug: a block is cleared after a copy from host memory was written to it."""
    honest = BlockTables._take_first

    def take(self, group, found):
        waiting = list(self._self_blocks_to_clear)
        count = honest(self, group, found)
        self._self_blocks_to_clear = waiting
        return count

    monkeypatch.setattr(BlockTables, "_take_first", take)


def plant_damaged_blocks_are_not_cleared(monkeypatch):
    honest = BlockTables._take_first

    def take(self, group, found):
        waiting = list(self._self_blocks_to_clear)
        count = honest(self, group, found)
        self._self_blocks_to_clear = [block for block in self._self_blocks_to_clear if block in waiting]
        return count

    monkeypatch.setattr(BlockTables, "_take_first", take)


def plant_keys_without_salt(monkeypatch):
    monkeypatch.setattr(sequence, "root_key", lambda salt: b"")


@pytest.mark.parametrize(
    "bug",
    [
        plant_copies_that_are_overwritten,
        plant_unread_checksums,
        plant_blocks_cleared_after_their_copy,
        plant_damaged_blocks_are_not_cleared,
        plant_keys_without_salt,
    ],
)
def test_planted_bugs_are_noticed(bug, monkeypatch):
    """Negative control: with each planted bug, a group reads wrong blocks, and the simulation fails."""
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(40):
            run_random_interleaving(Simulation(random.Random(seed), cross=False, prefix=True, drafts=True, host=True))
