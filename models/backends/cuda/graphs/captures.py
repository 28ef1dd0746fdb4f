"""Captures one graph for each size of a step, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from models.backends.cuda.graphs.graph_runner import GraphRunner

Result = TypeVar("Result")

MAX_CAPTURE_SECONDS = 20.0
"""Time limit for capturing the graphs of one kind of step. Steps of a size without a graph run in a larger graph, or
eagerly."""


class CaptureTime:
    """The time of the captures of one model, which is limited for each kind of steps.

    seconds: limit for one kind of steps.
    clock: returns the present time in seconds.
    num_captured, num_left_out: number of captured graphs, and of graphs that were left out because the time was over.
    """

    def __init__(self, seconds: float = MAX_CAPTURE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._limit = clock, seconds
        self._start = self._kind_start = clock()
        self.num_captured = self.num_left_out = 0

    @property
    def seconds(self) -> float:
        """Seconds since the creation of this object."""
        return self._clock() - self._start

    def start_kind(self) -> None:
        """Begin to capture another kind of steps."""
        self._kind_start = self._clock()

    @property
    def is_over(self) -> bool:
        """Whether the time for the present kind of steps is over."""
        return self._clock() - self._kind_start > self._limit


def capture_sizes(
    runner: GraphRunner, sizes: Sequence[int], step_of: Callable[[int], Callable[[], Result]], time: CaptureTime
) -> dict[int, tuple[Callable[[], object], Result]]:
    """Capture a graph for each size. Returns the replay and the result of each, by size in ascending order.

    The largest graph is captured first, so that the others fit into its memory. The time limit does not apply to it.
    The other graphs follow in ascending order, because a graph saves most time in steps of few tokens.

    sizes: in ascending order, at least one.
    step_of: given a size, returns the function that computes a step of this size, which the graph captures.
    time: limits how many graphs are captured.
    """
    found: dict[int, tuple[Callable[[], object], Result]] = {}
    time.start_kind()
    for size in (sizes[-1], *sizes[:-1]):
        if found and time.is_over:
            time.num_left_out += 1
            continue
        found[size] = runner.capture(step_of(size))
        time.num_captured += 1
    return dict(sorted(found.items()))
