"""Rules of the prefix cache: which blocks a group may reuse, and until when.

`test_scheduler` runs random events with hits, failures and evictions. The planted bugs here show that such a test would
detect wrong reuse.
"""

from __future__ import annotations

import random

import pytest

from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.scheduling.scheduler import Scheduler
from server.engine.sequences import prefix_keys, sequence
from server.engine.sequences.sequence import SequenceGroup
from tests.engine.simulation import Simulation, turn
from tests.ipc.one_row import one_row


def shared_simulation(**sizes) -> Simulation:
    simulation = Simulation(
        random.Random(6), cross=False, **{"blocks": 60, "block_size": 4, "max_batch_tokens": 64, **sizes}
    )
    simulation.scheduler.blocks.prefix_cache = True
    return simulation


def add_prompt(simulation: Simulation, prompt: list[int], salt: str = "", **params) -> SequenceGroup:
    message = one_row(0, "m", prompt, cache_salt=salt, **{"max_new_tokens": 3, **params})
    request = SequenceGroup(message, message.rows[0], False, 0.0)
    simulation.requests.append(request)
    simulation.salts[request] = salt
    simulation.scheduler.add(request)
    return request


def run_until_first_token(simulation: Simulation, request: SequenceGroup) -> SequenceGroup:
    """Run steps until a group has its first token. Returns the group."""
    while not request.num_generated:
        turn(simulation)
    return request


@pytest.mark.parametrize("tokens, cached", [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8), (30, 8)])
def test_whole_blocks_are_reused_and_the_last_token_is_always_computed(tokens, cached):
    simulation = shared_simulation(max_batch_tokens=512)
    text = list(range(50))
    run_until_first_token(simulation, add_prompt(simulation, text[:11]))
    request = add_prompt(simulation, text[:tokens])
    schedule = simulation.scheduler.schedule()
    assert request.cached_tokens == cached
    assert [row.num_tokens for row in schedule.rows if row.group is request] == [tokens - cached]
    assert (
        simulation.scheduler.blocks.num_prefix_queries == 11 + tokens
        and simulation.scheduler.blocks.num_prefix_hits == cached
    )


def test_blocks_stay_cached_after_their_request_until_eviction():
    simulation = shared_simulation(blocks=10, block_size=4)
    for begin in (0, 20):
        simulation.scheduler.remove(
            run_until_first_token(simulation, add_prompt(simulation, list(range(begin, begin + 17))))
        )
    assert simulation.scheduler.blocks.self_pool.free_blocks == 10
    simulation.scheduler.remove(run_until_first_token(simulation, add_prompt(simulation, list(range(17)))))
    # This text evicts blocks. The blocks of the most recently used text are evicted last.
    simulation.scheduler.remove(run_until_first_token(simulation, add_prompt(simulation, list(range(60, 73)))))
    assert run_until_first_token(simulation, add_prompt(simulation, list(range(20, 37)))).cached_tokens < 16
    assert run_until_first_token(simulation, add_prompt(simulation, list(range(17)))).cached_tokens > 0


def test_a_request_with_another_salt_reuses_no_blocks():
    simulation = shared_simulation()
    text = list(range(40))
    assert run_until_first_token(simulation, add_prompt(simulation, text, "one")).cached_tokens == 0
    assert run_until_first_token(simulation, add_prompt(simulation, text, "other")).cached_tokens == 0
    assert run_until_first_token(simulation, add_prompt(simulation, text, "one")).cached_tokens == 36
    assert run_until_first_token(simulation, add_prompt(simulation, text, "")).cached_tokens == 0


def test_rows_of_one_prompt_wait_for_the_first_and_reuse_its_blocks():
    simulation = shared_simulation(max_batch_tokens=16, max_batch_rows=8)
    rows = [add_prompt(simulation, list(range(40))) for _ in range(4)]
    computed = []
    while not rows[-1].num_generated:
        computed.append(sum(row.num_tokens for row in turn(simulation).rows if row.group in rows))
    assert [row.cached_tokens for row in rows] == [0, 36, 36, 36]
    assert sum(computed) < 40 + 3 * 4 + 4 * len(computed)


def test_a_request_that_waits_for_blocks_continues_if_their_request_is_aborted():
    simulation = shared_simulation(max_batch_tokens=8)
    first, second = [add_prompt(simulation, list(range(40))) for _ in range(2)]
    assert [row.group for row in simulation.scheduler.schedule().rows] == [first]
    simulation.scheduler.remove(first)
    assert [row.group for row in simulation.scheduler.schedule().rows] == [second] and second.cached_tokens == 0


def test_a_preempted_request_reuses_its_own_blocks():
    simulation = shared_simulation(blocks=12, block_size=4, max_batch_rows=8)
    old, new = (
        add_prompt(simulation, list(range(16)), max_new_tokens=16),
        add_prompt(simulation, list(range(20, 36)), max_new_tokens=16),
    )
    run_until_first_token(simulation, old), run_until_first_token(simulation, new)
    simulation.scheduler._preempt(new)
    assert new.sequences[0].num_computed_tokens == 0
    simulation.scheduler.schedule()
    assert new.sequences[0].num_computed_tokens == 16 and new.cached_tokens == 0


def test_a_prompt_with_logprobs_reuses_no_blocks_but_shares_its_own():
    simulation = shared_simulation()
    text = list(range(20))
    assert run_until_first_token(simulation, add_prompt(simulation, text, prompt_logprobs=True)).cached_tokens is None
    assert run_until_first_token(simulation, add_prompt(simulation, text, prompt_logprobs=True)).cached_tokens is None
    assert run_until_first_token(simulation, add_prompt(simulation, text)).cached_tokens == 16


def test_a_decoder_with_a_source_has_no_prefix_cache():
    assert not BlockTables(BlockManager(9, 4), BlockManager(9, 4), prefix_cache=True).prefix_cache


def test_blocks_of_a_failed_request_are_not_reused():
    simulation = shared_simulation()
    failed = add_prompt(simulation, list(range(20)))
    schedule = simulation.scheduler.schedule()
    simulation.compute(schedule)
    simulation.scheduler.computed(schedule)
    simulation.fail(failed)
    assert len(simulation.scheduler.blocks.take_blocks_to_clear()[0]) == 5
    assert run_until_first_token(simulation, add_prompt(simulation, list(range(20)))).cached_tokens == 0


def run_random_interleaving(simulation: Simulation) -> None:
    for _ in range(400):
        simulation.add() if simulation.rng.random() < 0.3 else simulation.step()
    simulation.run_to_the_end()


def plant_keys_without_parent(monkeypatch):
    monkeypatch.setattr(prefix_keys, "block_key", lambda parent, tokens: original_block_key(b"", tokens))


def plant_keys_without_salt(monkeypatch):
    monkeypatch.setattr(sequence, "root_key", lambda salt: b"")


def plant_publication_before_computation(monkeypatch):
    """Planted bug: blocks are published when they are allocated, not when they are computed."""
    honest = BlockTables.take

    def publish_early(self, request, found):
        honest(self, request, found)
        for block, key in zip(request.sequences[0].block_table, request.sequences[0].block_keys, strict=False):
            self.self_pool.publish(block, key)

    monkeypatch.setattr(BlockTables, "take", publish_early)


def plant_failed_blocks_stay_published(monkeypatch):
    """Planted bug: blocks of a failed group stay published."""
    honest = Scheduler.remove

    def publish_and_remove(self, request, corrupt=False):
        self.blocks.publish(request)
        honest(self, request)

    monkeypatch.setattr(Scheduler, "remove", publish_and_remove)


original_block_key = prefix_keys.block_key


@pytest.mark.parametrize(
    "bug",
    [
        plant_keys_without_parent,
        plant_keys_without_salt,
        plant_publication_before_computation,
        plant_failed_blocks_stay_published,
    ],
)
def test_planted_bugs_are_noticed(bug, monkeypatch):
    """Negative control: with each planted bug, a group reads wrong blocks, and the simulation fails."""
    run_random_interleaving(Simulation(random.Random(8), cross=False, prefix=True))
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(8):
            run_random_interleaving(Simulation(random.Random(seed), cross=False, prefix=True))
