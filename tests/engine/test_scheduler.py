"""The scheduler: single rules, and random orders of additions, steps, aborts, failures and preemptions.

`tests/engine/simulation.py` checks blocks and contents after every event, and that all groups end.
"""

from __future__ import annotations

import random

import pytest

from server.engine.beams.beam_search import Beam
from server.engine.cache import block_tables
from server.engine.cache.block_manager import BlockManager
from server.engine.sequences.sequence import SequenceGroup, SequenceStatus
from tests.engine.simulation import Simulation, queue, turn


@pytest.mark.parametrize(
    "cross, prefix, drafts", [(False, False, False), (True, False, True), (False, True, False), (False, True, True)]
)
@pytest.mark.parametrize("chunk", range(4))
def test_any_interleaving(cross, prefix, drafts, chunk):
    preemptions = forks = hits = accepted = 0
    for seed in range(chunk * 20, chunk * 20 + 20):
        simulation = Simulation(random.Random(f"{cross}{seed}"), cross, prefix, drafts)
        simulation.run_random_events(150)
        preemptions += simulation.scheduler.num_preemptions
        forks += sum(request.beams is not None and request.beams.length > 1 for request in simulation.requests)
        hits += simulation.scheduler.blocks.num_prefix_hits
        accepted += simulation.accepted
    assert (hits > 200) == prefix and (accepted > 200) == drafts
    assert preemptions > 20 and forks > 20, "too few preemptions or forked beams to test them"


def test_a_block_freed_twice_is_noticed():
    """Negative control: the simulation fails if a block is freed twice."""
    simulation = Simulation(random.Random(1), cross=False, blocks=40)
    request = simulation.add(num_beams=1, max_new_tokens=5)
    simulation.step()
    simulation.scheduler.blocks.self_pool.share(request.sequences[0].block_table)
    with pytest.raises(AssertionError):
        simulation.check_blocks()


def test_a_request_that_can_never_fit_is_refused():
    simulation = Simulation(random.Random(1), cross=False, blocks=12, block_size=4, max_batch_rows=8)
    assert simulation.add(num_beams=1, max_new_tokens=60) is None
    assert simulation.add(num_beams=4, max_new_tokens=30) is None
    assert simulation.refused == 2


def test_more_beams_than_rows_are_refused():
    simulation = Simulation(random.Random(1), cross=False, blocks=400, max_batch_rows=2)
    assert simulation.add(num_beams=4, max_new_tokens=2) is None


def test_decoding_continues_during_a_long_prefill():
    simulation = Simulation(
        random.Random(2), cross=False, blocks=200, block_size=4, max_batch_tokens=8, max_batch_rows=8
    )
    short = [queue(simulation, 3, 50), queue(simulation, 4, 50)]
    while not all(request.num_generated for request in short):
        turn(simulation)
    long = queue(simulation, 100)
    while long.num_generated == 0:
        schedule = turn(simulation)
        assert schedule.num_tokens <= 8
        assert sum(row.num_tokens for row in schedule.rows if row.group in short) == 2
        assert schedule.phase == "mixed"


def test_prompts_count_as_prefill_until_they_are_computed():
    simulation = Simulation(
        random.Random(2), cross=False, blocks=200, block_size=4, max_batch_tokens=8, max_batch_rows=8
    )
    queue(simulation, 4)
    assert simulation.scheduler.has_prefill
    turn(simulation)
    assert not simulation.scheduler.has_prefill, "the only group decodes"
    queue(simulation, 30)
    turn(simulation)
    assert not simulation.scheduler.waiting and simulation.scheduler.has_prefill
    while simulation.scheduler.running[-1].num_generated == 0:
        turn(simulation)
    assert not simulation.scheduler.has_prefill


def test_a_decoding_step_prefills_only_a_small_chunk():
    simulation = Simulation(
        random.Random(2), cross=False, blocks=200, block_size=4, max_batch_tokens=160, max_batch_rows=64
    )
    queue(simulation, 300)
    assert turn(simulation).num_tokens == 160
    turn(simulation)
    few = queue(simulation, 300)
    assert turn(simulation).num_tokens == 1 + 160 // 8
    simulation.scheduler.remove(few)
    for _ in range(12):
        queue(simulation, 2)
    turn(simulation), turn(simulation)
    queue(simulation, 100)
    assert turn(simulation).num_tokens == 13 + 13 * 4


def test_the_newest_request_is_preempted_and_resumes_first():
    simulation = Simulation(
        random.Random(3), cross=False, blocks=6, block_size=4, max_batch_tokens=64, max_batch_rows=8
    )
    oldest, middle, newest = [queue(simulation, 7, 16) for _ in range(3)]
    while not simulation.scheduler.num_preemptions:
        turn(simulation)
    assert newest.status is SequenceStatus.WAITING and simulation.scheduler.waiting.next() is newest
    assert oldest.status is middle.status is SequenceStatus.RUNNING
    lost = newest.preempted_tokens
    assert (
        newest.sequences[0].num_computed_tokens == 0 and lost > 0 and simulation.scheduler.blocks.num_wasted_tokens == 0
    )
    for other in (oldest, middle):
        simulation.scheduler.remove(other)
    turn(simulation)
    assert newest.status is SequenceStatus.RUNNING and simulation.scheduler.blocks.num_wasted_tokens == lost, (
        "the lost tokens must be computed again"
    )


def test_sources_are_encoded_whole_and_a_long_source_gets_its_own_step():
    simulation = Simulation(random.Random(4), cross=True, blocks=40, block_size=4, max_batch_tokens=4, max_batch_rows=8)
    simulation.scheduler.blocks.cross_pool = BlockManager(20, 4)
    for length in (3, 30, 3):
        queue(simulation, length)
    encoded = [[len(request.source_token_ids) for request in turn(simulation).sources] for _ in range(3)]
    assert encoded == [[3], [30], [3]]


def test_a_source_token_counts_as_half_a_token():
    simulation = Simulation(random.Random(4), cross=True, blocks=40, block_size=4, max_batch_tokens=9, max_batch_rows=8)
    simulation.scheduler.blocks.cross_pool = BlockManager(20, 4)
    for length in (6, 7, 6):
        queue(simulation, length)
    encoded = [[len(request.source_token_ids) for request in turn(simulation).sources] for _ in range(2)]
    assert encoded == [[6, 7], [6]]


def test_a_preempted_request_keeps_its_encoded_source():
    simulation = Simulation(random.Random(4), cross=True, blocks=6, block_size=4, max_batch_tokens=64, max_batch_rows=8)
    simulation.scheduler.blocks.cross_pool = BlockManager(20, 4)
    requests = [queue(simulation, 5, 20) for _ in range(3)]
    encodings = 0
    while any(request.num_generated < 20 for request in requests):
        encodings += len(turn(simulation).sources)
        for request in requests:
            if request.num_generated == 20 and request.status is not SequenceStatus.FINISHED:
                simulation.scheduler.remove(request)
    assert simulation.scheduler.num_preemptions > 0 and encodings == 3


def test_blocks_of_a_prompt_preempted_during_prefill_are_cleared():
    simulation = Simulation(
        random.Random(5), cross=False, blocks=10, block_size=4, max_batch_tokens=3, max_batch_rows=8
    )
    queue(simulation, 2, 30)
    turn(simulation)
    long = queue(simulation, 34, 2)
    turn(simulation)
    table = list(long.sequences[0].block_table)
    while not simulation.scheduler.num_preemptions:
        turn(simulation)
    assert long.status is SequenceStatus.WAITING and sorted(
        simulation.scheduler.blocks.take_blocks_to_clear()[0]
    ) == sorted(table)


def test_unverified_blocks_are_cleared():
    simulation = Simulation(
        random.Random(5), cross=False, blocks=40, block_size=4, max_batch_tokens=4, max_batch_rows=8
    )
    request = queue(simulation, 30)
    turn(simulation)
    table = list(request.sequences[0].block_table)
    simulation.scheduler.remove(request)
    assert sorted(simulation.scheduler.blocks.take_blocks_to_clear()[0]) == sorted(table)
    assert simulation.scheduler.blocks.take_blocks_to_clear() == ([], [])


def two_diverging_beams(simulation: Simulation) -> SequenceGroup:
    """Run a group until it has two beams of five tokens, in blocks of eight slots. Only their last tokens differ."""
    request = simulation.add(num_beams=2, max_new_tokens=9)
    assert request is not None
    request.sequences[0].tokens[:] = request.sequences[0].tokens[:1]
    request.num_prompt_tokens = 1
    for parents, lasts in [([0, 0], [11, 12]), ([0, 1], [13, 14]), ([0, 0], [15, 16]), ([1, 1], [17, 18])]:
        schedule = simulation.scheduler.schedule()
        assert schedule is not None
        simulation.compute(schedule)
        simulation.scheduler.computed(schedule)
        simulation.scheduler.blocks.publish(request)
        old = request.beams.running
        request.beams.running = [Beam([*old[row].tokens, last]) for row, last in zip(parents, lasts, strict=True)]
        simulation.scheduler.blocks.fork(request, parents)
        simulation.check_blocks()
    return request


def test_a_beam_reuses_the_block_of_an_ended_beam():
    simulation = Simulation(
        random.Random(1), cross=False, blocks=9, block_size=8, max_batch_tokens=64, max_batch_rows=6
    )
    request = two_diverging_beams(simulation)
    first, second = (row.block_table[0] for row in request.sequences)
    assert simulation.scheduler.blocks.self_pool.used_blocks == 2
    # Only the last tokens of the beams differ: one of four used slots is copied.
    assert request.copies == [(first, second, 3, 4)]
    schedule = simulation.scheduler.schedule()
    assert schedule.copies == [(first, second, 3, 4)] and not request.copies
    simulation.compute(schedule)


@pytest.mark.parametrize("end", ["preempted", "removed"])
def test_nothing_is_copied_into_freed_blocks(end):
    simulation = Simulation(
        random.Random(1), cross=False, blocks=9, block_size=8, max_batch_tokens=64, max_batch_rows=6
    )
    request = two_diverging_beams(simulation)
    if end == "removed":
        simulation.scheduler.remove(request)
    else:
        simulation.scheduler.restart(request)
    assert not request.copies and simulation.scheduler.blocks.self_pool.used_blocks == 0


def test_copying_too_few_slots_is_noticed(monkeypatch):
    """Negative control: if too few slots are copied, a beam has wrong keys and values."""
    monkeypatch.setattr(block_tables, "common_length", lambda text, other, limit: limit)
    simulation = Simulation(
        random.Random(1), cross=False, blocks=9, block_size=8, max_batch_tokens=64, max_batch_rows=6
    )
    with pytest.raises(AssertionError, match="a row finds wrong keys and values"):
        two_diverging_beams(simulation)
