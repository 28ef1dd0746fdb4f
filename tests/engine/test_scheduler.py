"""Thousands of interleavings of add, step, abort, failure and preemption: blocks always add up, and everything ends.

What is checked after every event is in `tests/engine/world.py`.
"""

from __future__ import annotations

import random

import pytest

from server.engine import block_tables
from server.engine.beam_search import Beam
from server.engine.block_manager import BlockManager
from server.engine.sequence import Request, State
from tests.engine.world import World, queue, turn


@pytest.mark.parametrize(
    "cross, prefix, drafts", [(False, False, False), (True, False, True), (False, True, False), (False, True, True)]
)
@pytest.mark.parametrize("chunk", range(4))
def test_any_interleaving(cross, prefix, drafts, chunk):
    preemptions = forks = hits = accepted = 0
    for seed in range(chunk * 20, chunk * 20 + 20):
        rng = random.Random(f"{cross}{seed}")
        world = World(rng, cross, prefix, drafts)
        for _ in range(150):
            event = rng.random()
            if event < 0.3:
                world.add()
            elif event < 0.36:
                world.abort()
            else:
                world.step()
        world.run_dry()
        preemptions += world.scheduler.num_preemptions
        forks += sum(request.beams is not None and request.beams.length > 1 for request in world.requests)
        hits += world.scheduler.blocks.num_prefix_hits
        accepted += world.accepted
    assert (hits > 200) == prefix and (accepted > 200) == drafts
    assert preemptions > 20 and forks > 20, "the interleavings do not reach what they are for"


def test_a_block_freed_twice_is_noticed():
    """Negative control: the invariants are able to fail."""
    world = World(random.Random(1), cross=False, blocks=40)
    request = world.add(num_beams=1, max_new_tokens=5)
    world.step()
    world.scheduler.blocks.self_pool.share(request.rows[0].block_table)
    with pytest.raises(AssertionError):
        world.check_blocks()


def test_what_can_never_fit_is_refused():
    world = World(random.Random(1), cross=False, blocks=12, block_size=4, max_batch_rows=8)
    assert world.add(num_beams=1, max_new_tokens=60) is None
    assert world.add(num_beams=4, max_new_tokens=30) is None
    assert world.refused == 2


def test_more_beams_than_rows_are_refused():
    world = World(random.Random(1), cross=False, blocks=400, max_batch_rows=2)
    assert world.add(num_beams=4, max_new_tokens=2) is None


def test_decode_goes_on_while_a_long_prompt_is_read():
    world = World(random.Random(2), cross=False, blocks=200, block_size=4, max_batch_tokens=8, max_batch_rows=8)
    short = [queue(world, 3, 50), queue(world, 4, 50)]
    while not all(request.num_generated for request in short):
        turn(world)
    long = queue(world, 100)
    while long.num_generated == 0:
        schedule = turn(world)
        assert schedule.num_tokens <= 8
        assert sum(row.num_tokens for row in schedule.rows if row.request in short) == 2
        assert schedule.phase == "mixed"


def test_a_step_that_decodes_reads_only_a_little_of_a_prompt():
    world = World(random.Random(2), cross=False, blocks=200, block_size=4, max_batch_tokens=160, max_batch_rows=64)
    queue(world, 300)
    assert turn(world).num_tokens == 160
    turn(world)
    few = queue(world, 300)
    assert turn(world).num_tokens == 1 + 160 // 8
    world.scheduler.remove(few)
    for _ in range(12):
        queue(world, 2)
    turn(world), turn(world)
    queue(world, 100)
    assert turn(world).num_tokens == 13 + 13 * 4


def test_the_newest_request_is_preempted_and_comes_back_first():
    world = World(random.Random(3), cross=False, blocks=6, block_size=4, max_batch_tokens=64, max_batch_rows=8)
    oldest, middle, newest = [queue(world, 7, 16) for _ in range(3)]
    while not world.scheduler.num_preemptions:
        turn(world)
    assert newest.state is State.WAITING and world.scheduler.waiting[0] is newest
    assert oldest.state is middle.state is State.RUNNING
    lost = newest.lost_tokens
    assert newest.rows[0].num_computed_tokens == 0 and lost > 0 and world.scheduler.blocks.num_wasted_tokens == 0
    for other in (oldest, middle):
        world.scheduler.remove(other)
    turn(world)
    assert newest.state is State.RUNNING and world.scheduler.blocks.num_wasted_tokens == lost, (
        "it computes them anew when it comes back"
    )


def test_sources_are_encoded_whole_and_a_long_one_goes_when_no_other_prefill_does():
    world = World(random.Random(4), cross=True, blocks=40, block_size=4, max_batch_tokens=4, max_batch_rows=8)
    world.scheduler.blocks.cross_pool = BlockManager(20, 4)
    for length in (3, 30, 3):
        queue(world, length)
    encoded = [[len(request.source_token_ids) for request in turn(world).sources] for _ in range(3)]
    assert encoded == [[3], [30], [3]]


def test_a_token_of_a_source_counts_half():
    world = World(random.Random(4), cross=True, blocks=40, block_size=4, max_batch_tokens=9, max_batch_rows=8)
    world.scheduler.blocks.cross_pool = BlockManager(20, 4)
    for length in (6, 7, 6):
        queue(world, length)
    encoded = [[len(request.source_token_ids) for request in turn(world).sources] for _ in range(2)]
    assert encoded == [[6, 7], [6]]


def test_a_source_stays_encoded_through_preemption():
    world = World(random.Random(4), cross=True, blocks=6, block_size=4, max_batch_tokens=64, max_batch_rows=8)
    world.scheduler.blocks.cross_pool = BlockManager(20, 4)
    requests = [queue(world, 5, 20) for _ in range(3)]
    encodings = 0
    while any(request.num_generated < 20 for request in requests):
        encodings += len(turn(world).sources)
        for request in requests:
            if request.num_generated == 20 and request.state is not State.FINISHED:
                world.scheduler.remove(request)
    assert world.scheduler.num_preemptions > 0 and encodings == 3


def test_a_prompt_preempted_half_way_leaves_suspect_blocks():
    world = World(random.Random(5), cross=False, blocks=10, block_size=4, max_batch_tokens=3, max_batch_rows=8)
    queue(world, 2, 30)
    turn(world)
    long = queue(world, 34, 2)
    turn(world)
    table = list(long.rows[0].block_table)
    while not world.scheduler.num_preemptions:
        turn(world)
    assert long.state is State.WAITING and sorted(world.scheduler.blocks.take_suspects()[0]) == sorted(table)


def test_blocks_that_no_finite_logits_spoke_for_are_suspect():
    world = World(random.Random(5), cross=False, blocks=40, block_size=4, max_batch_tokens=4, max_batch_rows=8)
    request = queue(world, 30)
    turn(world)
    table = list(request.rows[0].block_table)
    world.scheduler.remove(request)
    assert sorted(world.scheduler.blocks.take_suspects()[0]) == sorted(table)
    assert world.scheduler.blocks.take_suspects() == ([], [])


def part(world: World) -> Request:
    """Two beams with five tokens in their first block of eight, of which the last differ; then both go on from one."""
    request = world.add(num_beams=2, max_new_tokens=9)
    assert request is not None
    request.rows[0].tokens[:] = request.rows[0].tokens[:1]
    request.num_prompt_tokens = 1
    for parents, lasts in [([0, 0], [11, 12]), ([0, 1], [13, 14]), ([0, 0], [15, 16]), ([1, 1], [17, 18])]:
        schedule = world.scheduler.schedule()
        assert schedule is not None
        world.compute(schedule)
        world.scheduler.computed(schedule)
        world.scheduler.blocks.publish(request)
        old = request.beams.running
        request.beams.running = [Beam([*old[row].tokens, last]) for row, last in zip(parents, lasts, strict=True)]
        world.scheduler.blocks.fork(request, parents)
        world.check_blocks()
    return request


def test_a_beam_takes_over_the_block_of_one_that_ended():
    world = World(random.Random(1), cross=False, blocks=9, block_size=8, max_batch_tokens=64, max_batch_rows=6)
    request = part(world)
    first, second = (row.block_table[0] for row in request.rows)
    assert world.scheduler.blocks.self_pool.used_blocks == 2
    # The beams' last tokens alone were different: of four in use one slot is copied.
    assert request.copies == [(first, second, 3, 4)]
    schedule = world.scheduler.schedule()
    assert schedule.copies == [(first, second, 3, 4)] and not request.copies
    world.compute(schedule)


@pytest.mark.parametrize("end", ["preempted", "removed"])
def test_nothing_is_copied_into_blocks_given_back(end):
    world = World(random.Random(1), cross=False, blocks=9, block_size=8, max_batch_tokens=64, max_batch_rows=6)
    request = part(world)
    if end == "removed":
        world.scheduler.remove(request)
    else:
        world.scheduler.restart(request)
    assert not request.copies and world.scheduler.blocks.self_pool.used_blocks == 0


def test_a_slot_too_few_is_noticed(monkeypatch):
    """Negative control: beams that take each other for more alike than they are lose their past."""
    monkeypatch.setattr(block_tables, "common_length", lambda one, other, limit: limit)
    world = World(random.Random(1), cross=False, blocks=9, block_size=8, max_batch_tokens=64, max_batch_rows=6)
    with pytest.raises(AssertionError, match="a row lost its past"):
        part(world)
