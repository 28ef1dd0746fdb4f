"""Pauses between restarts of a worker, and the limit of failures, with a simulated clock."""

from __future__ import annotations

import pytest

from server.ipc.workers.restart_policy import RestartLimits, RestartPolicy


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0
        self.policy = RestartPolicy(RestartLimits(max_failures=5), lambda: self.seconds)

    def fail(self, after: float, ready: float | None) -> float:
        """Advance the clock by `after` seconds and count a failure. Returns the pause in seconds.

        ready: seconds for which the worker was ready; None if it never became ready.
        """
        self.seconds += after
        self.policy.failed(ready)
        return self.policy.pause_seconds


def test_the_pause_grows_also_when_each_worker_becomes_ready() -> None:
    clock = Clock()
    pauses = [clock.fail(20.0, 1.0) for _ in range(8)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_the_pause_is_short_again_after_a_steady_worker() -> None:
    clock = Clock()
    assert [clock.fail(1.0, 1.0) for _ in range(3)][-1] == pytest.approx(0.4)
    assert clock.fail(100.0, 29.0) == pytest.approx(0.8)
    assert clock.fail(100.0, 30.0) == pytest.approx(0.1)


def test_five_failures_within_a_minute_are_too_many() -> None:
    clock = Clock()
    for _ in range(4):
        clock.fail(14.9, 5.0)
        assert clock.policy.exhausted is None
    clock.fail(14.9, 5.0)
    assert clock.policy.exhausted == "failed 5 times within 60 s"


def test_five_failures_in_a_longer_time_are_not() -> None:
    clock = Clock()
    for _ in range(20):
        clock.fail(15.1, 5.0)
        assert clock.policy.exhausted is None


def test_five_failed_starts_in_a_row_are_too_many_however_long_they_take() -> None:
    clock = Clock()
    for _ in range(4):
        clock.fail(100.0, None)
    clock.fail(100.0, 1.0)
    for _ in range(4):
        clock.fail(100.0, None)
        assert clock.policy.exhausted is None
    clock.fail(100.0, None)
    assert clock.policy.exhausted == "failed to start 5 times in a row"
