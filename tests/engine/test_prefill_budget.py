"""The prefill budget limits how much prefill work delays running streams.

Step durations are simulated, in arbitrary units: 8, plus 0.25 per decode token and 0.5 per prefill token.
"""

from __future__ import annotations

import random

import pytest

from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.scheduling.prefill_budget import MAX_PREFILL_SECONDS, MIN_PREFILL_TOKENS, PrefillBudget
from server.engine.scheduling.schedule import Schedule
from server.engine.scheduling.scheduler import Scheduler
from server.engine.sequences.sequence import SequenceGroup
from tests.ipc.one_row import one_row


def seconds(decode_tokens: int, added_tokens: int) -> float:
    return 8 + 0.25 * decode_tokens + 0.5 * added_tokens


@pytest.fixture
def budget() -> PrefillBudget:
    """A prefill budget that has observed decode steps and prefill steps of many sizes."""
    one = PrefillBudget()
    for rows in (1, 2, 4, 8, 16, 32):
        for _ in range(20):
            one.observe(rows, 0, seconds(rows, 0))
    for added in (3, 40, 500):
        one.observe(0, added, seconds(1, added))
    return one


def test_no_limit_before_both_costs_are_measured(budget):
    new = PrefillBudget()
    new.observe(0, 50, 20.0)
    assert new.max_prefill_tokens(1, 0, 1, 1) is None
    new.observe(1, 0, 8.0)
    assert new.max_prefill_tokens(1, 0, 1, 1) is None
    new.observe(0, 100, 58.0)
    assert new.max_prefill_tokens(1, 0, 1, 1) == MIN_PREFILL_TOKENS
    assert budget.max_prefill_tokens(1, 0, 1, 1) is not None


@pytest.mark.parametrize("rows", [1, 16, 32])
def test_prefill_lengthens_a_decode_step_by_at_most_three_quarters(budget, rows):
    limit = budget.max_prefill_tokens(rows, 0, 1, rows)
    longest = max(1.75 * seconds(rows, 0), seconds(rows, MIN_PREFILL_TOKENS))
    assert seconds(rows, limit) == pytest.approx(longest, abs=0.5)


def test_expensive_prefill_tokens_lower_the_limit_to_the_minimum(budget):
    before = budget.max_prefill_tokens(32, 0, 1, 32)
    for _ in range(50):
        budget.observe(32, 200, seconds(32, 0) + 200 * 0.6)
    assert before > budget.max_prefill_tokens(32, 0, 1, 32) > MIN_PREFILL_TOKENS
    for _ in range(50):
        budget.observe(32, 200, seconds(32, 0) + 200 * 5.0)
    assert budget.max_prefill_tokens(32, 0, 1, 32) == MIN_PREFILL_TOKENS


def test_a_delayed_step_changes_the_limit_little(budget):
    before = budget.max_prefill_tokens(16, 0, 1, 16)
    budget.observe(16, 0, 1000 * seconds(16, 0))
    assert budget.max_prefill_tokens(16, 0, 1, 16) <= 1.3 * before


def test_many_waiting_groups_raise_the_limit(budget):
    one = budget.max_prefill_tokens(16, 0, 1, 16)
    assert budget.max_prefill_tokens(16, 0, 16, 16) == one
    assert budget.max_prefill_tokens(16, 0, 160, 16) == pytest.approx(10 * one, rel=0.05)


def test_groups_that_just_started_may_wait_as_long_as_their_first_step(budget):
    """Later arrivals may delay a group that has one token, for as long as its own first step took."""
    budget.observe(0, 240, seconds(8, 240))
    assert budget.max_prefill_tokens(0, 8, 8, 8) == pytest.approx(256, abs=10)
    assert budget.max_prefill_tokens(0, 8, 24, 8) == pytest.approx(3 * 256, abs=30)
    # One group with at least two tokens lowers the limit, although eight groups have just started.
    assert budget.max_prefill_tokens(1, 8, 1, 9) < 30


class SimulatedModel:
    """A simulated translation model. steps, seconds: schedules and simulated durations of all steps."""

    def __init__(self, new_tokens: int, max_batch_tokens: int = 512) -> None:
        self.scheduler = Scheduler(BlockTables(BlockManager(400, 16), BlockManager(400, 16)), max_batch_tokens, 64)
        self.new_tokens = new_tokens
        self.lengths = random.Random(3)
        self.count = 0
        self.steps: list[Schedule] = []
        self.seconds: list[float] = []

    def add(self, count: int) -> None:
        for _ in range(count):
            source = [5] * self.lengths.randint(8, 60)
            message = one_row(self.count, "m", source, [1], max_new_tokens=self.new_tokens)
            self.scheduler.add(SequenceGroup(message, message.rows[0], True, 0.0))
            self.count += 1

    def step(self) -> bool:
        schedule = self.scheduler.schedule()
        if schedule is None:
            return False
        took = seconds(schedule.num_decode_tokens, schedule.num_prefill_tokens)
        self.steps.append(schedule)
        self.seconds.append(took)
        self.scheduler.prefill_budget.observe(schedule.num_decode_tokens, schedule.num_prefill_tokens, took)
        ready = [row.group for row in schedule.rows if row.needs_logits]
        self.scheduler.computed(schedule)
        for request in ready:
            self.scheduler.append(request, [7])
            if request.num_generated == self.new_tokens:
                self.scheduler.remove(request)
        return True

    def run(self) -> int:
        """Run until all groups end. Returns the number of steps."""
        self.steps, self.seconds = [], []
        while self.step():
            pass
        return len(self.steps)


@pytest.mark.parametrize("first", [1, 4, 8, 16, 24])
def test_a_burst_in_two_parts_takes_nearly_as_few_steps(first):
    model = SimulatedModel(32)
    model.add(8)
    model.run()
    model.add(first)
    model.step()
    model.add(32 - first)
    # `run` does not count the step above. If all requests arrive at once, 32 steps are needed.
    assert model.run() <= 34


def test_without_measured_costs_the_same_burst_takes_many_steps(monkeypatch):
    monkeypatch.setattr(PrefillBudget, "max_prefill_tokens", lambda *args: None)
    model = SimulatedModel(32)
    model.add(8)
    model.step()
    model.add(24)
    assert model.run() > 36


def test_arriving_groups_never_triple_the_step_time():
    """While requests end and new ones arrive, no step takes three times the median. The first five are not checked."""
    model = SimulatedModel(60)
    model.add(16)
    while model.count < 60:
        model.step()
        if model.lengths.random() < 0.2:
            model.add(1)
    model.run()
    usual = sorted(model.seconds)[len(model.seconds) // 2]
    assert max(model.seconds[5:]) < 3 * usual


def test_no_step_of_a_long_prompt_on_a_slow_machine_takes_long() -> None:
    """The steps of a long prompt stay short on a slow machine.

    Simulates a model of 4 billion parameters on two old cores: a token takes 0.13 s at first, and 0.4 s at the end.
    """
    scheduler = Scheduler(BlockTables(BlockManager(1700, 16), None), 512, 64)
    message = one_row(0, "m", [], [1] * 25_000, max_new_tokens=1)
    scheduler.add(SequenceGroup(message, message.rows[0], True, 0.0))
    steps = []
    while (schedule := scheduler.schedule()) is not None and not scheduler.running[0].is_ready_to_decode:
        (row,) = schedule.rows
        took = row.num_tokens * (0.13 + 0.27 * row.sequence.num_computed_tokens / 25_000)
        steps.append(took)
        scheduler.prefill_budget.observe(0, row.num_tokens, took)
        scheduler.computed(schedule)
        if row.needs_logits:
            break
    assert len(steps) > 100 and steps[0] > MAX_PREFILL_SECONDS
    assert max(steps[1:]) < 1.1 * MAX_PREFILL_SECONDS
