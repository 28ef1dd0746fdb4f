"""A client that disconnects before its text is tokenized causes no work in the engine."""

from __future__ import annotations

import asyncio

import pytest

from tests.api.conftest import Bench


@pytest.mark.parametrize("path", ["/generate", "/embed"])
async def test_a_client_that_leaves_during_tokenizing_never_reaches_the_engine(bench: Bench, path: str) -> None:
    bench.become_ready()
    tokenizing, left = asyncio.Event(), asyncio.Event()
    encode = bench.runtime.encode_with

    async def slow_encode(*arguments: object, **options: object) -> object:
        tokenizing.set()
        await left.wait()
        return await encode(*arguments, **options)

    bench.runtime.encode_with = slow_encode
    bodies = [b'{"prompt": "abc"}' if path == "/generate" else b'{"inputs": "abc"}']

    async def receive() -> dict:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await tokenizing.wait()
        asyncio.get_running_loop().call_soon(left.set)
        return {"type": "http.disconnect"}

    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    scope |= {"http_version": "1.1", "scheme": "http", "root_path": "", "client": None, "server": None}
    await bench.app(scope, receive, send)
    assert bench.sent == [] and bench.client.num_open_sequences == 0
    assert sent[0]["status"] == 499
