"""Requests are refused before their bodies are read when too many are in progress, in the shape of their dialect."""

from __future__ import annotations

import asyncio

import httpx
import pytest
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from server.api.door import OVER_CONNECTION_LIMIT, Door
from server.api.fast_refusal import FastRefusals
from server.api.protocol import DirectHttpProtocol
from server.api_keys import load_keys
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


async def test_the_protocol_refuses_without_the_application(bench: Bench) -> None:
    """Two requests of one connection, one with a body that arrives after its refusal, get the middleware's answer."""
    bench.become_ready()
    bench.state.door.max_requests = 0
    async with httpx.AsyncClient(transport=httpx.ASGITransport(bench.app), base_url="http://test") as http:
        slow = await http.post("/api/generate", json={}, headers={"x-request-id": "r"})
    reached: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["path"])
        await Response("ok")(scope, receive, send)

    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None)
    config.load()
    protocol = type("Refusing", (DirectHttpProtocol,), {"refuse": staticmethod(FastRefusals(bench.state))})
    listener = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname()[:2])
    try:
        head = b"POST /api/generate HTTP/1.1\r\nhost: a\r\nx-request-id: r\r\ncontent-length: 2\r\n\r\n"
        for pieces in ((head, b"{}"), (head + b"{}",)):
            writer.write(pieces[0])
            answer = await reader.readuntil(b"\r\n\r\n")
            found = dict(line.split(b": ", 1) for line in answer.split(b"\r\n")[1:-2])
            body = await reader.readexactly(int(found[b"content-length"]))
            assert answer.startswith(b"HTTP/1.1 %d " % slow.status_code) and body == slow.content
            expected = {name.encode(): value.encode() for name, value in slow.headers.items()}
            assert {name: found.get(name) for name in expected} == expected
            for piece in pieces[1:]:
                writer.write(piece)
        writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 OK")
    finally:
        writer.close()
        listener.close()
    assert reached == ["/health"]


async def test_the_protocol_leaves_keys_and_other_needs_to_the_application(bench: Bench) -> None:
    bench.become_ready()
    refuse = FastRefusals(bench.state)
    scope = {"type": "http", "method": "POST", "path": "/generate", "headers": []}
    assert refuse(scope) is None, "there is room"
    bench.state.door.max_requests = 0
    assert refuse(scope) is not None
    assert refuse(scope | {"method": "GET"}) is None
    assert refuse(scope | {"headers": [(b"x-error-format", b"tei")]}) is None
    bench.state.keys = load_keys(["secret"], None)
    assert refuse(scope) is None, "without a key the answer is 401"
    assert refuse(scope | {"headers": [(b"authorization", b"Bearer secret")]}) is not None
    bench.state.draining = True
    assert refuse(scope | {"headers": [(b"authorization", b"Bearer secret")]}) is None
