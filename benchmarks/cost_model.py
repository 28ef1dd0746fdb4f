"""A model of the time of a workload on many threads, fitted on one and two threads.

time(n) = work(n) + operations x barrier(n). The work shrinks as the floor of its matrix products does: with the memory
bandwidth and the peak rate that n threads reach. Threads meet after each operation of a program. The time of one such
meeting grows with the number of threads, because each of them writes to the same cache line; the model takes it to grow
in proportion to n, which is an upper estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Timing(NamedTuple):
    """The time of one workload with a number of threads.

    seconds: time of a run. floor: least time of its matrix products with as many threads.
    operations: operations of all programs in a run. units: tokens or texts of a run.
    """

    seconds: float
    floor: float
    operations: int
    units: int


@dataclass(frozen=True)
class Fit:
    """The fitted model. two_threads: seconds that two threads need to meet after one operation."""

    two_threads: float

    def barrier_seconds(self, threads: int) -> float:
        """Seconds of one meeting of this number of threads."""
        return self.two_threads * threads / 2 if threads > 1 else 0.0

    def seconds(self, threads: int, single: Timing, timing: Timing) -> float:
        """Predicted time of a workload. single: with one thread. timing: with as many threads, for its floor."""
        return single.seconds * timing.floor / single.floor + timing.operations * self.barrier_seconds(threads)


def fit(times: Mapping[int, Timing]) -> Fit | None:
    """The model from the times with 1 and 2 threads; None without both.

    A workload that is faster with two threads than the floor allows has a meeting of no time.
    """
    if 1 not in times or 2 not in times:
        return None
    one, two = times[1], times[2]
    waiting = two.seconds - one.seconds * two.floor / one.floor
    return Fit(max(waiting, 0.0) / two.operations)
