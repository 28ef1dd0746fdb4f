"""Predict the time of a workload on many threads, from measurements with one and two threads.

time(n) = work(n) + operations x barrier(n), for n threads.

work(n) is in proportion to the floor: the shortest possible time of the matrix products with the memory bandwidth and
the peak rate of n threads. barrier(n) is the time in which the threads wait for each other after an operation of a
program. All threads write to the same cache line there, so this time grows with n. The model assumes that it is in
proportion to n, which is an upper estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Timing(NamedTuple):
    """Measured time of one workload with a certain number of threads.

    seconds: time of a run.
    floor: shortest possible time of its matrix products with that number of threads, in seconds.
    operations: number of operations of all programs in a run. units: number of tokens or texts in a run.
    """

    seconds: float
    floor: float
    operations: int
    units: int


@dataclass(frozen=True)
class Fit:
    """The fitted model. two_threads: duration of one barrier of two threads, in seconds."""

    two_threads: float

    def barrier_seconds(self, threads: int) -> float:
        """Duration in seconds of one barrier of `threads` threads."""
        return self.two_threads * threads / 2 if threads > 1 else 0.0

    def seconds(self, threads: int, single: Timing, timing: Timing) -> float:
        """Predicted time of a workload with `threads` threads, in seconds.

        single: measurement with one thread. timing: measurement with `threads` threads; only its floor and its number
            of operations are used.
        """
        return single.seconds * timing.floor / single.floor + timing.operations * self.barrier_seconds(threads)


def fit(times: Mapping[int, Timing]) -> Fit | None:
    """Fit the model to the times with 1 and 2 threads. None if one of them is missing. times: by number of threads.

    The barrier takes no time if the workload is faster with two threads than the floor allows.
    """
    if 1 not in times or 2 not in times:
        return None
    one, two = times[1], times[2]
    waiting = two.seconds - one.seconds * two.floor / one.floor
    return Fit(max(waiting, 0.0) / two.operations)
