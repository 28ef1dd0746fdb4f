"""The memory of a server does not grow over many requests: a short run of `tests/chaos/soak.py`."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos import soak
from tests.e2e.conftest import RunningServer


def test_requests_leave_nothing(demo_server: RunningServer) -> None:
    def round_of(first: int) -> soak.Round:
        asyncio.run(soak.send(demo_server.url, first, 90))
        return soak.measure(demo_server.url, demo_server.process.pid, 1, first + 90)

    before, after = round_of(0), round_of(90)
    assert after.http_threads <= before.http_threads
    assert after.worker_descriptors <= before.worker_descriptors
    assert after.http_descriptors <= before.http_descriptors + 1  # the connection that reads the metrics


@pytest.mark.parametrize(("bytes_per_request", "grows"), [(0, False), (50, False), (1000, True)])
def test_growth_is_the_slope_after_the_warm_up(bytes_per_request: int, grows: bool) -> None:
    warm_up = [soak.Round(1, count, count * 5000, 0, 10, 10, 8) for count in (1000, 2000)]
    later = [
        soak.Round(1, count, 2**26 + count * bytes_per_request, 0, 10, 10, 8) for count in range(8000, 20000, 2000)
    ]
    slope = soak.growth([*warm_up, *later], "http_bytes")
    assert slope is not None and (slope > soak.MAX_BYTES_PER_REQUEST) == grows
