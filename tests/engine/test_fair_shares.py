"""Rows are shared fairly by API key, then by call, then by row.

A short request starts at once, even beside the most expensive one. The tests count steps."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from server.engine.scheduling.fair_rows import FairRows
from server.engine.scheduling.round_robin import RoundRobinQueue, RunningRows
from server.engine.sequences.sequence import SequenceGroup, SequenceStatus
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from tests.engine.simulation import Simulation, turn

ROWS = 8


def simulated(**sizes: int) -> Simulation:
    sizes = {"max_batch_rows": ROWS, "max_batch_tokens": 64, "blocks": 4000, "block_size": 4, **sizes}
    return Simulation(random.Random(1), cross=False, prefix=bool(sizes.pop("prefix", 0)), **sizes)


def call(
    simulation: Simulation, call_id: int, rows: int, prompt: int = 3, new: int = 1000, key: str = "", beams: int = 1
) -> list[SequenceGroup]:
    """Queue the rows of one call with equal prompts.

    prompt: number of prompt tokens. new: largest number of new tokens. key: API key. beams: number of beams.
    """
    first = len(simulation.requests) + 1
    made = [GenerateRow(row_id, new) for row_id in range(first, first + rows)]
    message = Generate(
        "m", GenerationParams(num_beams=beams), [[call_id % 50] * prompt], made, call_id=call_id, key=key
    )
    groups = [SequenceGroup(message, row, False, 0.0) for row in made]
    for group in groups:
        simulation.requests.append(group)
        simulation.salts[group] = ""
        simulation.scheduler.add(group)
    return groups


def step(simulation: Simulation) -> None:
    """Run one step, and end the groups that have all their tokens."""
    turn(simulation)
    for group in list(simulation.scheduler.running):
        if group.num_generated >= group.max_new_tokens:
            simulation.scheduler.remove(group)


def steps_until(simulation: Simulation, groups: list[SequenceGroup]) -> int:
    """Run steps until every group has a token. Returns the number of steps."""
    count = 0
    while not all(group.num_generated for group in groups):
        step(simulation)
        count += 1
        assert count < 200
    return count


def running(simulation: Simulation) -> Counter[str]:
    return Counter(group.key for group in simulation.scheduler.running)


@pytest.mark.parametrize("new", [1, 1000], ids=["dear rows end at once", "dear rows run on"])
@pytest.mark.parametrize("prefix", [0, 1])
def test_a_short_call_starts_in_the_next_step_beside_a_call_with_a_thousand_rows(new: int, prefix: int) -> None:
    simulation = simulated(prefix=prefix)
    dear = call(simulation, 1, 1000, prompt=9, new=new)
    for _ in range(5):
        step(simulation)
    short = call(simulation, 2, 1)
    assert steps_until(simulation, short) == 1
    assert any(group.status is SequenceStatus.RUNNING for group in dear) or new == 1


def test_a_short_request_starts_at_once_beside_more_streams_than_rows() -> None:
    """A short request starts at once although streams of one row each occupy all rows.

    No call has more than its share then. The stream that is preempted continues soon afterwards.
    """
    simulation = simulated()
    streams = [call(simulation, 1 + number, 4)[0] for number in range(30)]
    for _ in range(5):
        step(simulation)
    before = list(simulation.scheduler.running)
    assert len(before) == ROWS and {group.call_id for group in before} <= {group.call_id for group in streams}
    short = call(simulation, 100, 1, new=4)
    assert steps_until(simulation, short) == 1
    for _ in range(5):
        step(simulation)
    assert set(simulation.scheduler.running) == set(before), "the row goes back to the stream that had it"


def test_short_requests_take_an_eighth_of_the_rows_at_most() -> None:
    simulation = simulated(max_batch_rows=16)
    for number in range(30):
        call(simulation, 1 + number, 1)
    for _ in range(5):
        step(simulation)
    for number in range(50):
        call(simulation, 100 + number, 1, new=30)
        step(simulation)
        assert sum(not group.is_short for group in simulation.scheduler.running) >= 14


def test_rows_of_one_prompt_wait_for_it_but_other_calls_do_not() -> None:
    """With a prefix cache, the other rows of a call wait until the first one has computed the prompt.

    Rows of other calls do not wait.
    """
    simulation = simulated(prefix=1, max_batch_tokens=16)
    call(simulation, 1, 4, prompt=100)
    step(simulation)
    others = [call(simulation, 2 + number, 1, prompt=3)[0] for number in range(3)]
    assert steps_until(simulation, others) <= 2


@pytest.mark.parametrize("prompt", [3, 12, 40])
def test_a_short_prompt_beside_long_ones_takes_at_most_three_times_its_steps_and_one(prompt: int) -> None:
    alone = simulated(max_batch_tokens=16)
    steps_alone = steps_until(alone, call(alone, 2, 1, prompt))
    simulation = simulated(max_batch_tokens=16, max_batch_rows=64)
    long = call(simulation, 1, 16, prompt=900)
    call(simulation, 3, 16, prompt=900)
    for _ in range(3):
        step(simulation)
    assert steps_until(simulation, call(simulation, 2, 1, prompt)) <= 3 * steps_alone + 1
    assert sum(group.sequences[0].num_computed_tokens for group in long) > 0


def test_long_prompts_make_progress_while_short_ones_keep_arriving() -> None:
    simulation = simulated(max_batch_tokens=16, max_batch_rows=64)
    long = call(simulation, 1, 1, prompt=400)
    for number in range(120):
        call(simulation, 2 + number, 1, prompt=8, new=1)
        step(simulation)
    assert long[0].num_generated


def test_keys_share_the_rows_before_calls_do() -> None:
    simulation = simulated()
    for number in range(20):
        call(simulation, 1 + number, 1, key="many calls")
    for _ in range(3):
        step(simulation)
    assert running(simulation) == {"many calls": ROWS}
    other = call(simulation, 100, 20, key="one call")
    assert steps_until(simulation, other[:1]) == 1
    for _ in range(ROWS):
        step(simulation)
    assert running(simulation) == {"many calls": ROWS // 2, "one call": ROWS // 2}
    preempted = simulation.scheduler.num_preemptions
    for _ in range(20):
        step(simulation)
    assert simulation.scheduler.num_preemptions == preempted, "fair shares stay as they are"


def test_a_beam_search_gets_its_rows_from_a_large_call_only() -> None:
    simulation = simulated()
    call(simulation, 1, 1)
    call(simulation, 2, 20)
    for _ in range(3):
        step(simulation)
    beams = call(simulation, 3, 1, beams=4)
    step(simulation)
    assert beams[0].status is SequenceStatus.WAITING, "5 rows of the call would become 3, fewer than the 4 of the beams"
    small = call(simulation, 4, 1, beams=3)
    simulation.scheduler.remove(beams[0])
    simulation.scheduler.schedule()
    assert small[0].status is SequenceStatus.RUNNING
    assert simulation.requests[0].status is SequenceStatus.RUNNING


def test_a_short_call_gets_blocks_when_a_dear_call_has_all() -> None:
    simulation = simulated(blocks=24, max_batch_rows=64)
    call(simulation, 1, 40, prompt=12)
    for _ in range(3):
        step(simulation)
    short = call(simulation, 2, 1, prompt=5)
    assert steps_until(simulation, short) == 1


def test_no_two_groups_take_rows_from_each_other() -> None:
    """Preemptions for fairness come to an end, because each of them makes the shares more equal."""
    rng = random.Random(5)
    for _ in range(20):
        simulation = simulated()
        for number in range(30):
            call(simulation, 1 + number, rng.randint(1, 9), key=rng.choice("abc"), beams=rng.choice([1, 1, 2]))
        for _ in range(40):
            step(simulation)
        assert simulation.scheduler.num_preemptions <= 30 * ROWS
        before = simulation.scheduler.num_preemptions
        for _ in range(20):
            step(simulation)
        assert simulation.scheduler.num_preemptions == before
        rows = simulation.scheduler.running_rows
        assert rows.total == sum(group.max_rows for group in simulation.scheduler.running) <= ROWS


def test_the_victim_is_the_newest_group_of_the_largest_call() -> None:
    simulation = simulated()
    large = call(simulation, 1, 5)
    call(simulation, 2, 3)
    step(simulation)
    (waiting,) = call(simulation, 3, 1)
    assert FairRows(simulation.scheduler.running_rows, simulation.scheduler.running).victim(waiting) is large[-1]
    assert FairRows(RunningRows(), []).victim(waiting) is None


def test_turns_go_by_key_then_call_then_item() -> None:
    queue: RoundRobinQueue[str] = RoundRobinQueue()
    for key, call_id, item in [("a", 1, "a1"), ("a", 1, "a2"), ("a", 2, "b1"), ("k", 3, "k1"), ("k", 3, "k2")]:
        queue.add(key, call_id, item)
    order = []
    while queue:
        order.append(queue.next())
        queue.end_turn()
    assert order == ["a1", "k1", "b1", "k2", "a2"]


def giver_beside_a_prompt(max_batch_tokens: int) -> tuple[Simulation, SequenceGroup]:
    """A simulation with a stream that decodes, and a running prompt of 48 tokens, at most 4 of them in a step.

    Returns the simulation, and the group of the stream.
    """
    simulation = simulated(prefix=1, max_batch_rows=2 * ROWS, max_batch_tokens=max_batch_tokens, blocks=30)
    giver = call(simulation, 1, 1, prompt=40)[0]
    while not giver.num_generated:
        step(simulation)
    simulation.scheduler._prefill_limit = lambda schedule: 4  # type: ignore[method-assign]
    call(simulation, 2, 1, prompt=48, new=1)
    step(simulation)
    return simulation, giver


def test_no_room_is_made_for_a_group_that_could_not_start() -> None:
    """A stream is not preempted for a prompt that cannot start because a running prompt takes the rest of each step."""
    simulation, giver = giver_beside_a_prompt(max_batch_tokens=40)
    longer = call(simulation, 3, 1, prompt=60, new=1)[0]
    step(simulation)
    assert giver.status is SequenceStatus.RUNNING
    steps = steps_until(simulation, [longer])
    assert simulation.scheduler.num_preemptions == 1 and steps > 48 // 4


def test_a_group_that_made_room_starts_again_only_after_the_other_one() -> None:
    """A stream that was preempted for a waiting prompt continues only after this prompt has started."""
    simulation, giver = giver_beside_a_prompt(max_batch_tokens=64)
    longer = call(simulation, 3, 1, prompt=60, new=1)[0]
    step(simulation)
    assert giver.status is SequenceStatus.WAITING, "no room was made"
    while longer.status is SequenceStatus.WAITING:
        assert giver.status is SequenceStatus.WAITING
        step(simulation)
    assert simulation.scheduler.num_preemptions == 1
    assert steps_until(simulation, [longer]) and giver.status is SequenceStatus.RUNNING


def test_a_group_that_made_room_for_an_aborted_one_starts_again() -> None:
    simulation, giver = giver_beside_a_prompt(max_batch_tokens=64)
    longer = call(simulation, 3, 1, prompt=60, new=1)[0]
    step(simulation)
    assert giver.status is SequenceStatus.WAITING
    simulation.scheduler.remove(longer)
    for _ in range(48 // 4):
        step(simulation)
    assert giver.status is SequenceStatus.RUNNING


@pytest.mark.parametrize("number", [2159, 3907])
def test_groups_do_not_take_the_same_room_in_turns(number: int) -> None:
    """Two groups do not preempt each other alternately without end.

    The numbers are seeds of `make chaos` with which they once did.
    """
    Simulation(random.Random(f"chaos{number}"), cross=False, prefix=True, drafts=True).run_random_events(150)
