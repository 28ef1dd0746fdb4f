"""Requests generated from the OpenAPI document never get a 5xx or end the worker. `make fuzz` sends many more."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from server.api.dialects import registry
from tests.fuzz.schema import check_routes, totals
from tests.wire.conftest import LONG_LIMITS, Process
from tests.wire.conftest import checkpoints as checkpoints
from tests.wire.conftest import start as start

SECONDS = float(os.environ.get("SCHEMA_SECONDS", "0"))
"""Time for random requests; 0 for one fixed request of each kind to each route."""


def test_every_route_answers_every_request(start: Callable[..., Process]) -> None:
    assert LONG_LIMITS
    server = start(environment={"FAKE_WORKER_PLAIN": "1"}).wait_ready()
    worker = server.worker()
    counts = check_routes(server.url, SECONDS)
    posted = {name.removeprefix("POST ") for name, _, _ in counts if name.startswith("POST ")}
    assert posted >= {route.path for route in registry.ROUTES}
    statuses = {(kind, status) for _, kind, status in counts}
    assert {("positive", 200), ("negative", 422)} <= statuses
    assert sum(counts.values()) >= len(registry.ROUTES) * 1.5
    print(f"{sum(counts.values())} requests, by kind and status: {sorted(totals(counts).items())}")
    assert server.metric("triptych_worker_restarts_total") == 0 and worker.is_running()
    assert "fault in" not in server.output


def test_a_fault_is_noticed(start: Callable[..., Process], checkpoints: list[str]) -> None:
    """Negative control: if every request makes the fake worker fail (a prompt with `%`), the check fails."""
    from tests.fuzz import schema

    server = start().wait_ready()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "_name_a_model", lambda case, models, number: _break(case))
        with pytest.raises(BaseException, match="500"):
            check_routes(server.url)


def _break(case: object) -> None:
    body = getattr(case, "body", None)
    if isinstance(body, dict):
        body.clear()
        body.update({"prompt": "%", "model": "decoder"})
