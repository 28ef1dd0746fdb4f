"""Busy models get equal time, however long their steps are."""

from __future__ import annotations

from collections import Counter

from server.engine.fairness import DeficitRoundRobin


def share(costs: dict[str, float], steps: int, busy=None) -> Counter:
    turns = DeficitRoundRobin(costs)
    seconds: Counter = Counter()
    for _ in range(steps):
        name = turns.pick(busy or costs)
        seconds[name] += costs[name]
        turns.charge(name, costs[name])
    return seconds


def test_equal_time_for_unequal_steps():
    seconds = share({"small": 0.002, "large": 0.15, "middle": 0.03}, 5000)
    assert max(seconds.values()) - min(seconds.values()) < 0.2
    assert min(seconds.values()) > 5


def test_the_idle_one_costs_nothing_and_saves_nothing():
    turns = DeficitRoundRobin(["a", "b"])
    for _ in range(1000):
        assert turns.pick(["a"]) == "a"
        turns.charge("a", 0.01)
    both: Counter = Counter()
    for _ in range(1000):
        name = turns.pick(["a", "b"])
        both[name] += 1
        turns.charge(name, 0.01)
    assert abs(both["a"] - both["b"]) < 10


def test_nobody_busy():
    assert DeficitRoundRobin(["a"]).pick([]) is None
