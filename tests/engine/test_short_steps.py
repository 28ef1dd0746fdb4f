"""Beside a large batch, a short request starts in a separate, short step. Durations of steps are simulated.

A step takes 1 ms, plus 1 ms per decode token and 0.5 ms per prefill token.
"""

from __future__ import annotations

import random

import pytest

from server.engine.cache.block_manager import BlockManager
from server.engine.scheduling.prefill_budget import PrefillBudget
from server.engine.scheduling.schedule import Schedule
from server.engine.scheduling.short_steps import MAX_SHARE, MIN_RATIO, ShortSteps
from server.engine.sequences.sequence import SequenceGroup, SequenceStatus
from tests.engine.simulation import Simulation, queue
from tests.engine.test_fair_shares import call

ROWS = 64


def seconds(decode_tokens: int, prefill_tokens: int, fixed: float = 1.0) -> float:
    return 0.001 * (fixed + decode_tokens + 0.5 * prefill_tokens)


def simulated(fixed: float = 1.0, rows: int = ROWS) -> Simulation:
    """A simulation whose prefill budget has measured steps. fixed: milliseconds of every step besides its tokens."""
    simulation = Simulation(
        random.Random(1), cross=False, max_batch_rows=rows, max_batch_tokens=512, blocks=4000, block_size=4
    )
    budget = simulation.scheduler.prefill_budget = PrefillBudget()
    for tokens in (1, 2, 4, 8, 16, 32, 64):
        for _ in range(8):
            budget.observe(tokens, 0, seconds(tokens, 0, fixed))
            budget.observe(0, tokens, seconds(0, tokens, fixed))
    return simulation


def step(simulation: Simulation) -> Schedule:
    """Run one step, and end the groups that have all their tokens."""
    scheduler = simulation.scheduler
    schedule = scheduler.schedule_short() or scheduler.schedule()
    assert schedule is not None
    simulation.compute(schedule)
    ready = {row.group for row in schedule.rows if row.needs_logits}
    scheduler.computed(schedule)
    for group in ready:
        simulation.scheduler.append(group, [7])
        if group.num_generated >= group.max_new_tokens:
            scheduler.remove(group)
    return schedule


def groups_of(schedule: Schedule) -> list[SequenceGroup]:
    return [row.group for row in schedule.rows]


def beside_streams(fixed: float = 1.0) -> Simulation:
    simulation = simulated(fixed)
    for number in range(2 * ROWS):
        call(simulation, 1 + number, 4, new=400)
    for _ in range(20):
        step(simulation)
    return simulation


def test_a_short_request_starts_in_a_step_of_its_own_beside_streams() -> None:
    simulation = beside_streams()
    (short,) = call(simulation, 900, 1, prompt=4, new=4)
    assert groups_of(step(simulation)) == [short] and short.num_generated == 1
    following = step(simulation)
    assert following.num_rows == ROWS and short in groups_of(following), "it goes on in the step of all groups"


def test_a_short_request_starts_in_a_step_of_its_own_beside_rows_of_one_token() -> None:
    """A short request starts in a separate step also if the other rows have one new token, so that no row decodes."""
    simulation = simulated()
    call(simulation, 1, 1000, prompt=8, new=1)
    for _ in range(3):
        assert step(simulation).num_rows == ROWS
    (short,) = call(simulation, 2, 1, prompt=4, new=4)
    assert groups_of(step(simulation)) == [short]


def test_short_requests_that_arrive_together_share_the_step() -> None:
    simulation = beside_streams()
    short = [call(simulation, 900 + number, 1, prompt=4, new=4)[0] for number in range(3)]
    assert set(groups_of(step(simulation))) == set(short)


@pytest.mark.parametrize(("new", "prompt"), [(400, 4), (4, 200)], ids=["many new tokens", "a long prompt"])
def test_other_requests_get_no_step_of_their_own(new: int, prompt: int) -> None:
    simulation = beside_streams()
    (group,) = call(simulation, 900, 1, prompt=prompt, new=new)
    for _ in range(5):
        assert groups_of(step(simulation)) != [group]


def test_there_is_no_such_step_where_it_would_take_as_long() -> None:
    """There is no separate step on a device whose steps take the same time for any number of rows.

    The other requests would lose the time of a whole step.
    """
    simulation = beside_streams(fixed=1000.0)
    (short,) = call(simulation, 900, 1, prompt=4, new=4)
    schedule = step(simulation)
    assert short in groups_of(schedule) and schedule.num_rows == ROWS


def test_short_requests_alone_share_every_step() -> None:
    """Short requests without a large batch beside them share steps. Separate steps would be slower for all of them."""
    simulation = simulated()
    for number in range(5):
        call(simulation, 1 + number, 1, prompt=4, new=1)
        step(simulation)
    groups = [call(simulation, 900 + number, 1, prompt=40, new=20)[0] for number in range(6)]
    assert simulation.scheduler.schedule_short() is None
    assert set(groups_of(step(simulation))) == set(groups)


def test_there_is_no_such_step_on_an_idle_engine_or_before_steps_were_measured() -> None:
    simulation = simulated()
    call(simulation, 1, 1, prompt=4, new=4)
    assert simulation.scheduler.schedule_short() is None
    simulation = simulated()
    simulation.scheduler.prefill_budget = PrefillBudget()
    call(simulation, 1, ROWS, prompt=4)
    step(simulation)
    call(simulation, 2, 1, prompt=4, new=4)
    assert simulation.scheduler.schedule_short() is None


@pytest.mark.parametrize("prompt", [1, 4, 30])
def test_such_steps_take_a_tenth_of_the_time_at_most(prompt: int) -> None:
    """Separate steps take at most a tenth of the time, even if a short request arrives before each step."""
    simulation = beside_streams()
    short = full = 0.0
    for number in range(300):
        call(simulation, 900 + number, 1, prompt=prompt, new=2)
        schedule = step(simulation)
        took = seconds(schedule.num_decode_tokens, schedule.num_prefill_tokens)
        if schedule.num_rows < ROWS // 2:
            short += took
        else:
            full += took
    assert short > 0.0 and short <= 1.01 * MAX_SHARE * full


def test_the_share_and_the_ratio_are_limits() -> None:
    steps = ShortSteps()
    assert not steps.allows(1.0, 1000.0), "no other step was computed"
    steps.count(is_short=False)
    assert steps.allows(1.0, 10.0) and not steps.allows(1.1, 10.0)
    for _ in range(99):
        steps.count(is_short=False)
    assert steps.allows(1.0, MIN_RATIO) and not steps.allows(1.0, 0.99 * MIN_RATIO)
    steps.count(is_short=True)
    assert not steps.allows(1.0, 10.0)


def test_a_short_request_whose_source_finds_no_blocks_waits_without_harm() -> None:
    """No group is preempted for a short request whose source has no room, because preemption frees no sources."""
    simulation = Simulation(
        random.Random(1), cross=True, max_batch_rows=8, max_batch_tokens=64, blocks=100, block_size=4
    )
    simulation.scheduler.blocks.cross_pool = BlockManager(10, 4)
    long = queue(simulation, 24, max_new_tokens=60)
    for _ in range(3):
        step(simulation)
    short = queue(simulation, 24, max_new_tokens=4)
    assert long.status is SequenceStatus.RUNNING
    for _ in range(70):
        if simulation.scheduler.running or simulation.scheduler.waiting:
            step(simulation)
    assert long.status is SequenceStatus.FINISHED and short.status is SequenceStatus.FINISHED
    assert simulation.scheduler.num_preemptions == 0
