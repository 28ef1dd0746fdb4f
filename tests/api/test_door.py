"""Requests are refused before their bodies are read when too many are in progress, in the shape of their dialect."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.datastructures import Headers

from server.api.door import OVER_CONNECTION_LIMIT, Door
from server.errors import Overloaded
from tests.api.conftest import Bench


def headers(size: int) -> Headers:
    return Headers({"content-length": str(size)})


def test_requests_and_bytes_are_limited() -> None:
    door = Door(max_requests=2, max_body_bytes=100, assumed_bytes=50)
    first = door.enter({}, headers(90))
    with pytest.raises(Overloaded) as refused:
        door.enter({}, Headers({"transfer-encoding": "chunked"}))
    assert refused.value.retry_after == 1
    second = door.enter({}, headers(10))
    with pytest.raises(Overloaded, match="limit 2"):
        door.enter({}, headers(0))
    door.leave(first)
    door.leave(second)
    assert door.requests == door.body_bytes == 0
    # One body above the limit is read, and refused by the limit of one body.
    door.leave(door.enter({}, headers(500)))


def test_a_connection_above_the_limit_is_refused() -> None:
    with pytest.raises(Overloaded, match="connections"):
        Door(2, 100, 50).enter({OVER_CONNECTION_LIMIT: True}, headers(0))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"prompt": "a"}),
        ("/v1/completions", {"model": "decoder", "prompt": "a"}),
        ("/v1/messages", {"model": "decoder", "max_tokens": 1, "messages": []}),
        ("/api/generate", {"model": "decoder", "prompt": "a"}),
    ],
)
async def test_each_dialect_refuses_in_its_shape(
    bench: Bench, http: httpx.AsyncClient, path: str, body: dict[str, object]
) -> None:
    bench.become_ready()
    bench.state.door.max_requests = 0
    answer = await http.post(path, json=body)
    assert answer.status_code in (429, 529, 503) and int(answer.headers["retry-after"]) >= 1
    assert "error" in answer.json()
    health = await http.get("/health")
    assert health.status_code == 200
    assert bench.state.door.requests == 0 and bench.state.answering == 0


async def test_the_place_of_a_request_is_free_after_its_answer(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    bench.state.door.max_requests = 1
    waiting = asyncio.ensure_future(http.post("/generate", json={"model": "decoder", "prompt": "abc"}))
    while not bench.sent:
        await asyncio.sleep(0)
    assert (await http.get("/info")).status_code == 200
    assert (await http.post("/generate", json={"prompt": "a"})).status_code == 429
    bench.client.fail_all("engine_error", "the end")
    assert (await waiting).status_code == 500
    assert bench.state.door.requests == 0 and bench.runtime.admission.total.memory_bytes == 0
