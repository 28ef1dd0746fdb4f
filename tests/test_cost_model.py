"""The cost model of threads fits times that follow its formula exactly, and finds the best number of threads."""

from __future__ import annotations

import pytest

from benchmarks.cores import numbers
from benchmarks.cost_model import Fit, Timing, fit

MEETING = 3e-6


def timing(threads: int, work: float = 0.2, operations: int = 1_000) -> Timing:
    """A measurement of work that is divided evenly, by threads that wait for each other after each operation."""
    meetings = operations * MEETING * threads / 2 if threads > 1 else 0.0
    return Timing(work / threads + meetings, 0.8 * work / threads, operations, 128)


def test_the_fit_finds_the_time_of_a_meeting_and_predicts_more_threads() -> None:
    model = fit({threads: timing(threads) for threads in (1, 2)})
    assert model is not None and model.two_threads == pytest.approx(MEETING)
    for threads in (2, 4, 16, 64):
        assert model.seconds(threads, timing(1), timing(threads)) == pytest.approx(timing(threads).seconds)
    assert model.barrier_seconds(1) == 0


def test_a_workload_that_is_faster_than_its_floor_has_meetings_of_no_time() -> None:
    assert fit({1: Timing(1.0, 0.5, 10, 1), 2: Timing(0.4, 0.25, 10, 1)}) == Fit(0.0)
    assert fit({1: timing(1)}) is None


def test_numbers_of_threads() -> None:
    assert numbers(1) == [1] and numbers(2) == [1, 2] and numbers(12) == [1, 2, 4, 8, 12]
