"""The two parts of the cost of prefill tokens are learned from steps of known durations. Times are in milliseconds."""

from __future__ import annotations

import random

import pytest

from server.engine.scheduling.token_costs import LEAST_WEIGHT, TRIALS, TokenCosts

DECODE, FIXED, PER_TOKEN = 6.0, 15.0, 0.03


def duration(tokens: int) -> float:
    return DECODE + FIXED + PER_TOKEN * tokens


def learned(*sizes: int, has_fixed_part: bool = True, times: int = TRIALS) -> TokenCosts:
    """Costs learned from steps of the given sizes in tokens. times: how often each size is observed."""
    costs = TokenCosts(has_fixed_part)
    for _ in range(times):
        for tokens in sizes:
            costs.observe(tokens, duration(tokens), DECODE, is_typical=True)
    return costs


def test_both_parts_are_found_from_steps_of_two_sizes():
    estimate = learned(16, 200).estimate()
    assert estimate.fixed_seconds == pytest.approx(FIXED)
    assert estimate.token_seconds == pytest.approx(PER_TOKEN)
    assert estimate.measured_tokens == 200


def test_the_fixed_part_needs_several_mixed_steps_of_two_sizes():
    for few in (learned(16), learned(16, 200, times=TRIALS - 1), learned(16, 200, has_fixed_part=False)):
        assert few.estimate().fixed_seconds == 0.0
    costs = learned(16)
    for _ in range(TRIALS):
        costs.observe(2048, duration(2048), DECODE, is_typical=False)
    assert costs.estimate().fixed_seconds == 0.0, "steps without decoding rows say nothing about the fixed part"


def test_no_part_is_negative():
    costs = TokenCosts(has_fixed_part=True)
    for _ in range(TRIALS):
        costs.observe(16, DECODE + 2.0, DECODE, is_typical=True)
        costs.observe(200, DECODE + 1.0, DECODE, is_typical=True)
    fixed, token_seconds, _ = costs.estimate()
    assert token_seconds == 0.0 and 1.0 <= fixed <= 2.0
    costs = TokenCosts(has_fixed_part=True)
    for _ in range(TRIALS):
        costs.observe(16, DECODE + 1.0, DECODE, is_typical=True)
        costs.observe(200, DECODE + 50.0, DECODE, is_typical=True)
    fixed, token_seconds, _ = costs.estimate()
    assert fixed == 0.0 and 1 / 16 < token_seconds < 50 / 200 + 1e-9


def test_the_tokens_of_a_step_take_the_time_that_the_fixed_part_leaves():
    cost = learned(16, 200, 1000).estimate()
    for seconds in (16.0, 30.0, 45.0):
        assert cost.tokens_within(seconds) == pytest.approx((seconds - FIXED) / PER_TOKEN, abs=1)
    assert cost.tokens_within(FIXED) == cost.tokens_within(1.0) == 0


def test_steps_much_larger_than_measured_ones_cost_in_proportion():
    cost = learned(16, 100).estimate()
    assert cost.tokens_within(duration(180) - DECODE) == pytest.approx(180, abs=1)
    assert cost.tokens_within(1.5 * (duration(100) - DECODE)) == 200
    assert cost.tokens_within(10 * (duration(100) - DECODE)) == 1000


def test_a_second_size_is_tried_when_all_steps_have_the_same_one():
    assert learned(16).with_trial(16) == 32
    assert learned(16, times=TRIALS - 1).with_trial(16) == 16
    assert learned(16, 200).with_trial(16) == 16
    assert learned(200).with_trial(16) == 16, "a smaller size is tried anyway"
    assert learned(16, has_fixed_part=False).with_trial(16) == 16


def test_one_delayed_step_changes_the_estimate_little():
    seconds = 2 * FIXED
    before = learned(16, 200, 500, times=10).estimate().tokens_within(seconds)
    for tokens in (16, 200, 500):
        delayed = learned(16, 200, 500, times=10)
        delayed.observe(tokens, 1000 * duration(tokens), DECODE, is_typical=True)
        assert before / 1.5 < delayed.estimate().tokens_within(seconds) < 1.5 * before


def test_a_slow_first_step_is_forgotten():
    costs = TokenCosts(has_fixed_part=True)
    costs.observe(16, 5000.0, DECODE, is_typical=True)
    for _ in range(TRIALS):
        costs.observe(16, duration(16), DECODE, is_typical=True)
        costs.observe(200, duration(200), DECODE, is_typical=True)
    assert costs.estimate().fixed_seconds == pytest.approx(FIXED, rel=0.5)


def test_many_steps_of_one_size_do_not_make_the_parts_unknown():
    costs, rng = learned(16, 1000), random.Random(1)
    for _ in range(5000):
        costs.observe(500, duration(500) * rng.lognormvariate(0, 0.05), DECODE, is_typical=True)
    assert costs.estimate().tokens_within(2 * FIXED) == pytest.approx(FIXED / PER_TOKEN, rel=0.2)
    assert min(size_class.weight for size_class in costs._classes.values()) == LEAST_WEIGHT


def test_changed_costs_are_learned():
    costs = learned(16, 200, 500, times=10)
    for _ in range(40):
        for tokens in (16, 200, 500):
            costs.observe(tokens, DECODE + 3.0 + 0.06 * tokens, DECODE, is_typical=True)
    fixed, token_seconds, _ = costs.estimate()
    assert fixed == pytest.approx(3.0, rel=0.1) and token_seconds == pytest.approx(0.06, rel=0.1)
