"""The prefix cache: which blocks are found, by which groups, for how long, and which must never be found.

Random interleavings with hits, failures and evictions are in `test_scheduler`. This file has the rules one by one, and
planted bugs that the interleavings must notice.
"""

from __future__ import annotations

import random

import pytest

from server.engine import prefix_keys, sequence
from server.engine.block_manager import BlockManager
from server.engine.block_tables import BlockTables
from server.engine.scheduler import Scheduler
from server.engine.sequence import SequenceGroup
from tests.engine.simulation import Simulation, turn
from tests.ipc.one_row import one_row


def shared_simulation(**sizes) -> Simulation:
    simulation = Simulation(
        random.Random(6), cross=False, **{"blocks": 60, "block_size": 4, "max_batch_tokens": 64, **sizes}
    )
    simulation.scheduler.blocks.prefix_cache = True
    return simulation


def ask(simulation: Simulation, prompt: list[int], salt: str = "", **params) -> SequenceGroup:
    message = one_row(0, "m", prompt, cache_salt=salt, **{"max_new_tokens": 3, **params})
    request = SequenceGroup(message, message.rows[0], False, 0.0)
    simulation.requests.append(request)
    simulation.salts[request] = salt
    simulation.scheduler.add(request)
    return request


def answer(simulation: Simulation, request: SequenceGroup) -> SequenceGroup:
    """Step until a group has its first token."""
    while not request.num_generated:
        turn(simulation)
    return request


@pytest.mark.parametrize("tokens, cached", [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8), (30, 8)])
def test_whole_blocks_are_found_and_the_last_token_is_always_computed(tokens, cached):
    simulation = shared_simulation(max_batch_tokens=512)
    text = list(range(50))
    answer(simulation, ask(simulation, text[:11]))
    request = ask(simulation, text[:tokens])
    schedule = simulation.scheduler.schedule()
    assert request.cached_tokens == cached
    assert [row.num_tokens for row in schedule.rows if row.group is request] == [tokens - cached]
    assert (
        simulation.scheduler.blocks.num_prefix_queries == 11 + tokens
        and simulation.scheduler.blocks.num_prefix_hits == cached
    )


def test_cached_blocks_outlive_their_request_until_they_are_evicted():
    simulation = shared_simulation(blocks=10, block_size=4)
    for begin in (0, 20):
        simulation.scheduler.remove(answer(simulation, ask(simulation, list(range(begin, begin + 17)))))
    assert simulation.scheduler.blocks.self_pool.free_blocks == 10
    simulation.scheduler.remove(answer(simulation, ask(simulation, list(range(17)))))
    # Nine blocks are needed; the blocks of the most recently used text are evicted last.
    simulation.scheduler.remove(answer(simulation, ask(simulation, list(range(60, 73)))))
    assert answer(simulation, ask(simulation, list(range(20, 37)))).cached_tokens < 16
    assert answer(simulation, ask(simulation, list(range(17)))).cached_tokens > 0


def test_a_request_with_another_salt_never_finds_a_prompt():
    simulation = shared_simulation()
    text = list(range(40))
    assert answer(simulation, ask(simulation, text, "one")).cached_tokens == 0
    assert answer(simulation, ask(simulation, text, "other")).cached_tokens == 0
    assert answer(simulation, ask(simulation, text, "one")).cached_tokens == 36
    assert answer(simulation, ask(simulation, text, "")).cached_tokens == 0


def test_rows_of_one_prompt_wait_for_the_first_and_find_it():
    simulation = shared_simulation(max_batch_tokens=16, max_batch_rows=8)
    rows = [ask(simulation, list(range(40))) for _ in range(4)]
    computed = []
    while not rows[-1].num_generated:
        computed.append(sum(row.num_tokens for row in turn(simulation).rows if row.group in rows))
    assert [row.cached_tokens for row in rows] == [0, 36, 36, 36]
    assert sum(computed) < 40 + 3 * 4 + 4 * len(computed)


def test_a_request_that_waits_for_another_continues_when_that_one_is_aborted():
    simulation = shared_simulation(max_batch_tokens=8)
    first, second = [ask(simulation, list(range(40))) for _ in range(2)]
    assert [row.group for row in simulation.scheduler.schedule().rows] == [first]
    simulation.scheduler.remove(first)
    assert [row.group for row in simulation.scheduler.schedule().rows] == [second] and second.cached_tokens == 0


def test_a_preempted_request_finds_its_own_blocks():
    simulation = shared_simulation(blocks=12, block_size=4, max_batch_rows=8)
    old, new = (
        ask(simulation, list(range(16)), max_new_tokens=16),
        ask(simulation, list(range(20, 36)), max_new_tokens=16),
    )
    answer(simulation, old), answer(simulation, new)
    simulation.scheduler._preempt(new)
    assert new.sequences[0].num_computed_tokens == 0
    simulation.scheduler.schedule()
    assert new.sequences[0].num_computed_tokens == 16 and new.cached_tokens == 0


def test_a_prompt_with_logprobs_is_computed_whole_and_can_be_found():
    simulation = shared_simulation()
    text = list(range(20))
    assert answer(simulation, ask(simulation, text, prompt_logprobs=True)).cached_tokens is None
    assert answer(simulation, ask(simulation, text, prompt_logprobs=True)).cached_tokens is None
    assert answer(simulation, ask(simulation, text)).cached_tokens == 16


def test_a_decoder_with_a_source_shares_nothing():
    assert not BlockTables(BlockManager(9, 4), BlockManager(9, 4), prefix_cache=True).prefix_cache


def test_the_blocks_of_a_failed_request_are_not_found():
    simulation = shared_simulation()
    failed = ask(simulation, list(range(20)))
    schedule = simulation.scheduler.schedule()
    simulation.compute(schedule)
    simulation.scheduler.computed(schedule)
    simulation.fail(failed)
    assert len(simulation.scheduler.blocks.take_blocks_to_clear()[0]) == 5
    assert answer(simulation, ask(simulation, list(range(20)))).cached_tokens == 0


def interleave(simulation: Simulation) -> None:
    for _ in range(400):
        simulation.add() if simulation.rng.random() < 0.3 else simulation.step()
    simulation.run_dry()


def plant_no_parent(monkeypatch):
    monkeypatch.setattr(prefix_keys, "block_key", lambda parent, tokens: honest_key(b"", tokens))


def plant_no_salt(monkeypatch):
    monkeypatch.setattr(sequence, "root_key", lambda salt: b"")


def plant_too_early(monkeypatch):
    """Planted bug: blocks are published when they are allocated, not when they are computed."""
    honest = BlockTables.take

    def eager(self, request, found):
        honest(self, request, found)
        for block, key in zip(request.sequences[0].block_table, request.sequences[0].block_keys, strict=False):
            self.self_pool.publish(block, key)

    monkeypatch.setattr(BlockTables, "take", eager)


def plant_failures_are_found(monkeypatch):
    """Planted bug: blocks of a failed group stay published."""
    honest = Scheduler.remove

    def careless(self, request, corrupt=False):
        self.blocks.publish(request)
        honest(self, request)

    monkeypatch.setattr(Scheduler, "remove", careless)


honest_key = prefix_keys.block_key


@pytest.mark.parametrize("bug", [plant_no_parent, plant_no_salt, plant_too_early, plant_failures_are_found])
def test_planted_bugs_are_noticed(bug, monkeypatch):
    """Negative control: each planted bug lets a group read wrong blocks."""
    interleave(Simulation(random.Random(8), cross=False, prefix=True))
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(8):
            interleave(Simulation(random.Random(seed), cross=False, prefix=True))
