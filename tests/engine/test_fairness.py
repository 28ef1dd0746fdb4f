"""Several busy models of an engine get equal compute time, however long their steps are."""

from __future__ import annotations

from collections import Counter

from server.engine.stepping.fairness import DeficitRoundRobin


def share(costs: dict[str, float], steps: int, busy=None) -> Counter:
    scheduler = DeficitRoundRobin(costs)
    seconds: Counter = Counter()
    for _ in range(steps):
        name = scheduler.pick(busy or costs)
        seconds[name] += costs[name]
        scheduler.charge(name, costs[name])
    return seconds


def test_equal_time_for_unequal_steps():
    seconds = share({"small": 0.002, "large": 0.15, "middle": 0.03}, 5000)
    assert max(seconds.values()) - min(seconds.values()) < 0.2
    assert min(seconds.values()) > 5


def test_an_idle_model_accumulates_no_time():
    scheduler = DeficitRoundRobin(["a", "b"])
    for _ in range(1000):
        assert scheduler.pick(["a"]) == "a"
        scheduler.charge("a", 0.01)
    both: Counter = Counter()
    for _ in range(1000):
        name = scheduler.pick(["a", "b"])
        both[name] += 1
        scheduler.charge(name, 0.01)
    assert abs(both["a"] - both["b"]) < 10


def test_no_model_is_picked_if_none_is_busy():
    assert DeficitRoundRobin(["a"]).pick([]) is None
