"""If too many requests are in progress, further ones are refused before their bodies are read.

The refusal has the error format of the request's dialect."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from server.api.connection.arrivals import BURST_STARTS, MAX_BODY_BYTES, STARTS_PER_ITERATION, Arrivals
from server.api.connection.protocol import DirectHttpProtocol
from server.api.entry.door import OVER_CONNECTION_LIMIT, Door
from server.api_keys import load_keys
from server.errors import Overloaded
from server.ipc.client.call import Call
from server.operations.cost import Cost
from server.settings.settings import Settings
from tests.api.conftest import Bench
from tests.scheduling import needs_scheduling_policies

HOST = (b"host", b"localhost")
SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "scheme": "http",
    "method": "POST",
    "path": "/generate",
    "headers": [HOST],
}


def headers(size: int) -> Headers:
    return Headers({"content-length": str(size)})


def test_requests_and_bytes_are_limited() -> None:
    door = Door(max_requests=2, max_body_bytes=100, assumed_bytes=50)
    first: Scope = {}
    second: Scope = {}
    door.enter(first, headers(90))
    with pytest.raises(Overloaded) as refused:
        door.enter({}, Headers({"transfer-encoding": "chunked"}))
    assert refused.value.retry_after == 1
    door.enter(second, headers(10))
    with pytest.raises(Overloaded, match="limit 2"):
        door.enter({}, headers(0))
    door.leave(first)
    door.leave(second)
    assert door.requests == door.body_bytes == 0
    # The door admits a body above its limit if no other is in progress. The limit of one body refuses it later.
    door.enter(first, headers(500))
    door.leave(first)


def test_a_body_without_a_length_is_counted_as_it_arrives() -> None:
    door, chunked = (
        Door(max_requests=3, max_body_bytes=100, assumed_bytes=20),
        Headers({"transfer-encoding": "chunked"}),
    )
    one: Scope = {}
    other: Scope = {}
    door.enter(one, chunked)
    door.enter(other, chunked)
    door.receive(one, 15)
    assert door.body_bytes == 40
    door.receive(one, 70)
    assert door.body_bytes == 90
    with pytest.raises(Overloaded, match="other requests in progress have 70 bytes"):
        door.receive(other, 40)
    door.leave(other)
    # The only body in progress may exceed the limit of all bodies. The limit of one body refuses it later.
    door.receive(one, 400)
    door.leave(one)
    assert door.requests == door.body_bytes == 0


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
    assert b'"reason":"requests"' in answer.content and b"--max-requests" in answer.content
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
    """The HTTP protocol refuses requests with the same answer as the middleware, even before the body has arrived."""
    bench.become_ready()
    bench.state.door.max_requests = 0
    async with httpx.AsyncClient(transport=httpx.ASGITransport(bench.app), base_url="http://localhost") as http:
        slow = await http.post("/api/generate", json={}, headers={"x-request-id": "r"})
    reached: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["path"])
        await Response("ok")(scope, receive, send)

    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None)
    config.load()
    protocol = type("Refusing", (DirectHttpProtocol,), {"receive": staticmethod(Arrivals(bench.state))})
    listener = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname()[:2])
    try:
        head = b"POST /api/generate HTTP/1.1\r\nhost: localhost\r\nx-request-id: r\r\ncontent-length: 2\r\n\r\n"
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
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 OK")
    finally:
        writer.close()
        listener.close()
    assert reached == ["/health"]


async def test_the_protocol_leaves_keys_and_other_needs_to_the_application(bench: Bench) -> None:
    bench.become_ready()
    refuse = partial(Arrivals(bench.state), body=None, start=lambda: None)
    scope = SCOPE
    assert refuse(scope) is None, "there is room"
    bench.state.door.max_requests = 0
    assert refuse(scope) is not None
    assert refuse(scope | {"method": "GET"}) is None
    assert refuse(scope | {"headers": [HOST, (b"x-error-format", b"tei")]}) is None
    for other in ([], [(b"host", b"evil.example")], [HOST, HOST], [HOST, (b"origin", b"http://localhost")]):
        assert refuse(scope | {"headers": other}) is None, "the application may refuse the page"
    bench.state.keys = load_keys(["secret"], None)
    assert refuse(scope) is None, "without a key the answer is 401"
    assert refuse(scope | {"headers": [HOST, (b"authorization", b"Bearer secret")]}) is not None
    bench.state.draining = True
    assert refuse(scope | {"headers": [HOST, (b"authorization", b"Bearer secret")]}) is None


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_refusal_is_logged_and_counted_with_its_limit_and_its_route(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    """A refusal by the HTTP protocol (`is_early`) and one by the middleware have the same log entry and metrics."""
    monkeypatch.setattr("server.api.connection.arrivals.steps_uninterrupted", nullcontext)
    caplog.set_level(logging.INFO, "triptych.access")
    bench = Bench(tmp_path, Settings(api_keys="secret"))
    bench.become_ready()
    bench.state.door.max_requests = 0
    key = (b"authorization", b"Bearer secret")
    for path in ("/generate/", "/models/decoder/detokenize", "/a/pasted/text"):
        if is_early:
            asked = SCOPE | {"path": path, "headers": [HOST, key, (b"x-request-id", b"mine")], "client": ("1.2.3.4", 5)}
            answer = Arrivals(bench.state)(asked, None, lambda: None)
            assert answer is not None and answer.headers["x-request-id"] == "mine"
        else:
            transport = httpx.ASGITransport(bench.app, client=("1.2.3.4", 5))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                await http.post(path, headers={key[0].decode(): key[1].decode(), "x-request-id": "mine"})
    bench.runtime.pools.close()
    logged = [vars(record)["fields"] for record in caplog.records if record.name == "triptych.access"]
    assert [entry.pop("path") for entry in logged] == ["/generate", "/models/decoder/detokenize", "unmatched"]
    for entry in logged:
        assert entry.pop("milliseconds") >= 0
        expected = {"client": "1.2.3.4", "method": "POST", "status": 429, "key": "setting-1", "reason": "requests"}
        assert entry == expected | {"request_id": "mine"}
    assert " 429 " in caplog.messages[0] and " key=setting-1 reason=requests mine" in caplog.messages[0]
    text = bench.metrics.render().decode()
    assert 'triptych_requests_rejected_total{reason="requests"} 3.0' in text
    for route in ("/generate", "/models/{model}/detokenize", "unmatched"):
        assert f'triptych_requests_total{{route="{route}",status="429"}} 1.0' in text


@needs_scheduling_policies
async def test_steps_are_not_interrupted_while_requests_are_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.api.connection.arrivals.LOG_SECONDS", 0.0)
    bench.become_ready()
    refuse = partial(Arrivals(bench.state), body=None, start=lambda: None)
    scope = SCOPE
    for _ in range(2):
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
        bench.state.door.max_requests = 0
        assert refuse(scope) is not None and refuse(scope) is not None
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        while os.sched_getscheduler(0) == os.SCHED_BATCH:
            await asyncio.sleep(0)


async def test_one_warning_counts_the_refusals_of_a_period_by_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("server.api.connection.arrivals.LOG_SECONDS", 0.0)
    bench.become_ready()
    refuse = partial(Arrivals(bench.state), body=None, start=lambda: None)
    door = bench.state.door
    for _ in range(2):
        door.body_bytes = door.max_body_bytes
        assert refuse(SCOPE | {"headers": [HOST, (b"content-length", b"1")]}) is not None
        door.max_requests = 0
        assert refuse(SCOPE) is not None and refuse(SCOPE) is not None
        door.max_requests = 512
        await asyncio.sleep(0.05)
    warnings = [record.getMessage() for record in caplog.records if record.name == "triptych.door"]
    assert len(warnings) == 2
    for warning in warnings:
        assert warning.startswith(
            "refused 3 requests within 0 s (body_memory: 1, requests: 2); the first: the bodies of the requests"
        )


async def test_the_protocol_refuses_requests_to_a_full_model(bench: Bench) -> None:
    """The HTTP protocol refuses requests for a model that has its share of the allowed requests in progress.

    A request to `/generate` without `model` counts as one for the default model.
    """
    bench.become_ready()
    admission = bench.runtime.admission
    admission.models, admission.max_requests = 2, 4

    def refused(body: bytes, path: str = "/generate") -> bool:
        scope = SCOPE | {"path": path}
        answer = Arrivals(bench.state)(scope, bytearray(body), lambda: None)
        assert answer is None or (answer.status_code == 429 and b'for \\"decoder\\" are in progress' in answer.body)
        return answer is not None

    calls = [Call(bench.client) for _ in range(3)]
    for call in calls:
        assert not refused(b'{"model": "decoder", "prompt": "a"}')
        admission.admit(call, bench.runtime.model("decoder"), Cost(0, 0, 1))
    assert refused(b'{"prompt": "a", "model": "decoder"}') and refused(b'{"prompt": "a"}')
    assert refused(b'{"model": "decoder", "prompt": "a"}', "/v1/completions")
    assert not refused(b'{"model": "embedder", "prompt": "a"}')
    assert not refused(b'{"model": "decoder"}', "/nowhere"), "the application answers 404"
    assert not refused(b'{"model": "decoder"') and not refused(b"model=decoder") and not refused(b"")
    assert not refused(b'{"model": "\xff"}') and not refused(b'{"prompt": %s' % (b"[" * 10_000)), (
        "the application says why"
    )
    assert not refused(b'{"model": "decoder", "prompt": "%s"}' % (b"a" * MAX_BODY_BYTES))
    calls[0].close()
    assert not refused(b'{"prompt": "a"}')


async def test_pipelined_requests_are_refused_and_answered_in_order(bench: Bench) -> None:
    bench.become_ready()
    reached: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["path"])
        await Response("ok")(scope, receive, send)

    def receive(scope: Scope, body: bytearray | None, start: Callable[[], None]) -> Response | None:
        if body == b"{}":
            return Response("full", 429)
        start()
        return None

    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None)
    config.load()
    protocol = type("Refusing", (DirectHttpProtocol,), {"receive": staticmethod(receive)})
    listener = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname()[:2])
    try:
        head = b"POST /%d HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n%b"
        writer.write(b"".join(head % (number, body) for number, body in enumerate([b"{}", b"[]", b"{}", b"[]"])))
        for expected in (b"full", b"ok", b"full", b"ok"):
            answer = await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(expected)) == expected, answer
    finally:
        writer.close()
        listener.close()
    assert reached == ["/1", "/3"]


async def test_requests_that_arrive_at_once_start_in_turns_and_count_before(bench: Bench) -> None:
    """Many requests arrive in one iteration of the event loop.

    Requests up to the limit of the model are admitted. The first ones start at once and the others in later iterations,
    but they count from their arrival, so the other requests are refused at once.
    """
    bench.become_ready()
    admission, started, starts = bench.runtime.admission, 0, []
    admission.models, admission.max_requests = 2, 4 * BURST_STARTS
    arrivals = Arrivals(bench.state)

    def start() -> None:
        nonlocal started
        started += 1

    scope = SCOPE
    refused = [arrivals(scope, bytearray(b'{"prompt": "a"}'), start) is not None for _ in range(5 * BURST_STARTS)]
    assert refused == [False] * (3 * BURST_STARTS) + [True] * (2 * BURST_STARTS)
    assert started == BURST_STARTS
    assert arrivals(scope | {"method": "GET"}, None, start) is None and started == 1 + BURST_STARTS, "not in turn"
    while started < 1 + 3 * BURST_STARTS:
        starts.append(started - 1)
        await asyncio.sleep(0)
        bench.state.door.requests = 1
    beside = range(2 * BURST_STARTS, 3 * BURST_STARTS, STARTS_PER_ITERATION)
    assert starts == [BURST_STARTS, *beside], "fewer start in a turn beside requests in progress"
    bench.state.door.requests = 0
    await asyncio.sleep(0)
    assert arrivals(scope, bytearray(b'{"prompt": "a"}'), start) is None, "what has started counts no longer here"
    bench.state.door.max_requests = 1
    assert arrivals(scope, None, start) is not None, "one is waiting"
