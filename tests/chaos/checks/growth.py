"""Check promise 24: after many requests, memory, file descriptors and threads have not grown."""

from __future__ import annotations

from pathlib import Path

from tests.chaos import soak
from tests.chaos.record import Record


def growth(requests: int, every: int, warm_up: int = soak.WARM_UP_REQUESTS, state: str = "") -> Record:
    """Promise 24: send mixed requests to one server and abort 5% of them.

    requests: number of requests. every: number of requests between two measurements.
    state: file with the measurements of an earlier run, which is continued; empty to start anew.
    """
    rounds = soak.soak(requests, every, Path(state) if state else None)
    record = Record("request", runs=rounds[-1].requests)
    slope = soak.growth(rounds, "http_bytes", warm_up)
    record.must(slope is not None, "too few rounds to see growth")
    record.most("growth of the HTTP process", max(slope or 0.0, 0.0), soak.MAX_BYTES_PER_REQUEST, "bytes a request")
    first, last = rounds[1], rounds[-1]
    record.most("descriptors added", last.http_descriptors - first.http_descriptors, 1, "")
    record.most("descriptors added in the worker", last.worker_descriptors - first.worker_descriptors, 0, "")
    record.most("threads added", last.http_threads - first.http_threads, 0, "")
    return record
