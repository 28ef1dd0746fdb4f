"""What a step takes in besides those it decodes for follows from seconds, and from who waits for whom.

Time is counted, not measured: a step takes 8 units, a row that decodes 0.25, a token that is added 0.5.
"""

from __future__ import annotations

import random

import pytest

from server.engine.block_manager import BlockManager
from server.engine.block_tables import BlockTables
from server.engine.prefill_budget import MIN_PREFILL_TOKENS, PrefillBudget
from server.engine.scheduler import Schedule, Scheduler
from server.engine.sequence import SequenceGroup
from tests.ipc.one_row import one_row


def seconds(decode_tokens: int, added_tokens: int) -> float:
    return 8 + 0.25 * decode_tokens + 0.5 * added_tokens


@pytest.fixture
def pace() -> PrefillBudget:
    """One that has seen steps of all kinds."""
    one = PrefillBudget()
    for rows in (1, 2, 4, 8, 16, 32):
        for _ in range(20):
            one.observe(rows, 0, seconds(rows, 0))
    for added in (3, 40, 500):
        one.observe(0, added, seconds(1, added))
    return one


def test_nothing_is_known_before_steps_of_both_kinds(pace):
    new = PrefillBudget()
    new.observe(0, 50, 20.0)
    assert new.max_prefill_tokens(1, 0, 1, 1) is None
    new.observe(1, 0, 8.0)
    assert new.max_prefill_tokens(1, 0, 1, 1) is None
    new.observe(0, 100, 58.0)
    assert new.max_prefill_tokens(1, 0, 1, 1) == MIN_PREFILL_TOKENS
    assert pace.max_prefill_tokens(1, 0, 1, 1) is not None


@pytest.mark.parametrize("rows", [1, 16, 32])
def test_a_newcomer_makes_the_step_of_settled_ones_longer_by_three_quarters(pace, rows):
    room = pace.max_prefill_tokens(rows, 0, 1, rows)
    longest = max(1.75 * seconds(rows, 0), seconds(rows, MIN_PREFILL_TOKENS))
    assert seconds(rows, room) == pytest.approx(longest, abs=0.5)


def test_a_token_that_is_dear_leaves_less_room_and_never_none(pace):
    before = pace.max_prefill_tokens(32, 0, 1, 32)
    for _ in range(50):
        pace.observe(32, 200, seconds(32, 0) + 200 * 0.6)
    assert before > pace.max_prefill_tokens(32, 0, 1, 32) > MIN_PREFILL_TOKENS
    for _ in range(50):
        pace.observe(32, 200, seconds(32, 0) + 200 * 5.0)
    assert pace.max_prefill_tokens(32, 0, 1, 32) == MIN_PREFILL_TOKENS


def test_a_step_that_was_held_up_changes_little(pace):
    before = pace.max_prefill_tokens(16, 0, 1, 16)
    pace.observe(16, 0, 1000 * seconds(16, 0))
    assert pace.max_prefill_tokens(16, 0, 1, 16) <= 1.3 * before


def test_many_newcomers_outweigh_few_settled_ones(pace):
    one = pace.max_prefill_tokens(16, 0, 1, 16)
    assert pace.max_prefill_tokens(16, 0, 16, 16) == one
    assert pace.max_prefill_tokens(16, 0, 160, 16) == pytest.approx(10 * one, rel=0.05)


def test_beginners_wait_as_long_as_their_own_beginning_took(pace):
    """Those that came with them, and were a moment late, are no more than they."""
    pace.observe(0, 240, seconds(8, 240))
    assert pace.max_prefill_tokens(0, 8, 8, 8) == pytest.approx(256, abs=10)
    assert pace.max_prefill_tokens(0, 8, 24, 8) == pytest.approx(3 * 256, abs=30)
    # One that has settled is not to wait for eight.
    assert pace.max_prefill_tokens(1, 8, 1, 9) < 30


class Line:
    """Sentences for a translator, and a worker that takes what time the steps would. counted: tokens of each step."""

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
        """How many steps there were until nothing was left."""
        self.steps, self.seconds = [], []
        while self.step():
            pass
        return len(self.steps)


@pytest.mark.parametrize("first", [1, 4, 8, 16, 24])
def test_a_burst_that_comes_in_two_parts_takes_nearly_as_few_steps(first):
    line = Line(32)
    line.add(8)
    line.run()
    line.add(first)
    line.step()
    line.add(32 - first)
    # The first step is not counted: together they would take 31 more.
    assert line.run() <= 34


def test_without_a_pace_the_same_burst_takes_many_steps(monkeypatch):
    monkeypatch.setattr(PrefillBudget, "max_prefill_tokens", lambda *args: None)
    line = Line(32)
    line.add(8)
    line.step()
    line.add(24)
    assert line.run() > 36


def test_a_newcomer_among_settled_ones_never_makes_a_step_three_times_as_long():
    """As in a server where one ends and another comes: all steps after the beginning."""
    line = Line(60)
    line.add(16)
    while line.count < 60:
        line.step()
        if line.lengths.random() < 0.2:
            line.add(1)
    line.run()
    usual = sorted(line.seconds)[len(line.seconds) // 2]
    assert max(line.seconds[5:]) < 3 * usual
