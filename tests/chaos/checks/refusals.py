"""Promise 7 as one check: arrivals above capacity, then many connections at once."""

from __future__ import annotations

from tests.chaos.checks.overload import arrivals, connections
from tests.chaos.record import Record


def overload(runs: int = 1, seconds: float = 10.0, count: int = 1280) -> Record:
    """runs, seconds: of each part. count: connections at once."""
    record = arrivals(runs, seconds)
    return record.include(connections(runs, count, seconds), f"{count:,} at once: ")
