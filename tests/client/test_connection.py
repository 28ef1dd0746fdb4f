"""Requests, retries, event streams and error messages of the client."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Any

import httpx
import pytest

from server.client.connection import (
    LATE_SECONDS,
    MAX_PAUSE_SECONDS,
    Connection,
    ServerAddress,
    StreamEvent,
    pause_seconds,
    read_events,
)
from server.client.errors import CommandError, RequestFailed, Unreachable

OVERLOADED = httpx.Response(429, headers={"retry-after": "3"}, json={"error": {"message": "full"}})


class Script:
    """A connection to a simulated server.

    answers: answers of the server, in order; an exception is raised instead of an answer.
    requests: requests that the client has sent. pauses: its pauses between retries, in seconds.
    """

    def __init__(self, *answers: httpx.Response | Exception, **target: Any) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []
        self.connection = Connection(
            ServerAddress("http://server", **target), httpx.MockTransport(self._answer), sleep=self._sleep
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def test_a_busy_server_is_asked_again_after_the_time_it_says() -> None:
    not_ready = httpx.Response(503, headers={"retry-after": "0.5"}, json={"error": {"message": "loading"}})
    script = Script(OVERLOADED, not_ready, httpx.Response(200, json=[1]))
    assert (await script.connection.post("/embed", {"inputs": "a"})).value == [1]
    assert script.pauses == [3.0, 0.5]
    assert len({request.content for request in script.requests}) == 1


async def test_retries_end() -> None:
    script = Script(*[OVERLOADED] * 3, retries=2)
    with pytest.raises(RequestFailed, match=r"full \(HTTP 429\)"):
        await script.connection.post("/embed", {})
    assert len(script.pauses) == 2


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500, 504])
async def test_other_failures_are_final(status: int) -> None:
    script = Script(httpx.Response(status, json={"error": {"message": "wrong\nfield"}}))
    with pytest.raises(RequestFailed) as failed:
        await script.connection.post("/embed", {})
    assert failed.value.status == status and "wrong field" in str(failed.value) and "\n" not in str(failed.value)
    assert ("TRIPTYCH_API_KEY" in str(failed.value)) is (status == 401)
    assert script.pauses == []


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": "text"}', b'{"error": {"message": 1}}'])
async def test_an_error_of_any_other_server_has_a_line(body: bytes) -> None:
    with pytest.raises(RequestFailed, match="HTTP 500"):
        await Script(httpx.Response(500, content=body)).connection.post("/embed", {})


def test_pauses() -> None:
    assert pause_seconds("7", 0) == 7 and pause_seconds("-1", 0) == 0 and pause_seconds("9999", 0) == MAX_PAUSE_SECONDS
    assert 3 < pause_seconds(formatdate(time.time() + 5, usegmt=True), 0) <= 5
    assert pause_seconds(formatdate(time.time() - 60, usegmt=True), 0) == 0
    for attempt in range(12):
        longest = min(0.25 * 2**attempt, MAX_PAUSE_SECONDS)
        assert longest / 2 <= pause_seconds("soon", attempt) <= longest


async def test_a_server_that_is_not_there_is_an_error_at_once() -> None:
    script = Script(httpx.ConnectError("refused"))
    with pytest.raises(Unreachable, match="triptych serve"):
        await script.connection.post("/embed", {})
    script = Script(httpx.RemoteProtocolError("closed"), httpx.Response(200, json=1))
    assert (await script.connection.post("/embed", {})).value == 1 and len(script.pauses) == 1


async def test_a_silent_server_is_a_timeout() -> None:
    with pytest.raises(Unreachable, match="sent nothing for 31 s") as failed:
        await Script(httpx.ReadTimeout("slow"), timeout_seconds=1).connection.post("/embed", {})
    assert failed.value.timed_out


def test_without_a_time_limit_an_answer_may_take_any_time() -> None:
    timeouts = [Script(timeout_seconds=seconds).connection._client.timeout.read for seconds in (None, 2.0)]
    assert timeouts == [None, 2.0 + LATE_SECONDS]


async def test_key_and_time_limit_are_headers() -> None:
    script = Script(httpx.Response(200, json=1), key="secret", timeout_seconds=1.5)
    await script.connection.post("/embed", {})
    headers = script.requests[0].headers
    assert headers["authorization"] == "Bearer secret" and headers["x-timeout-ms"] == "1500"
    script = Script(httpx.Response(200, json=1))
    await script.connection.post("/embed", {})
    assert not {"authorization", "x-timeout-ms"} & set(script.requests[0].headers)


async def test_cut_inputs_are_known() -> None:
    script = Script(httpx.Response(200, json=[], headers={"x-truncated-inputs": "0,2"}))
    assert (await script.connection.post("/embed", {})).truncated == {0, 2}


@pytest.mark.parametrize("url", ["server", "ftp://server", "http://", "http://host:port", ""])
def test_a_wrong_url_is_one_line(url: str) -> None:
    with pytest.raises(CommandError, match="is not the URL of a server"):
        Connection(ServerAddress(url))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_events_are_parsed_wherever_the_network_divides_them(size: int, end: str) -> None:
    lines = [": ping", "", "event: token", 'data: {"text":"\u2028é"}', "", "data:a", "data: b", "", "event: done", ""]
    data = end.join([*lines, "data: unfinished"]).encode()

    async def chunks():
        for start in range(0, len(data), size):
            yield data[start : start + size]

    assert [event async for event in read_events(chunks())] == [
        StreamEvent("token", '{"text":"\u2028é"}'),
        StreamEvent("", "a\nb"),
    ]
