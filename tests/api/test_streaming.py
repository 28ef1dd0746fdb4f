"""Streams through the whole application: the function that receives a step's tokens writes them to all connections."""

from __future__ import annotations

import asyncio
import json

import pytest

from server.api.bodies.sse import DIRECT_CONNECTION
from server.ipc.wire.generate_messages import Finished, Hypothesis, Tokens
from server.ipc.wire.step_messages import Failed
from tests.api.conftest import Bench

BODY = b'{"model": "decoder", "prompt": "abc", "stream": true}'


class Stream:
    """One streamed request, sent to the application without an HTTP library.

    has_connection: whether the request has a connection for direct writes. This object is that connection.
    has_room: whether the connection accepts direct writes.
    """

    def __init__(self, bench: Bench, has_connection: bool = True) -> None:
        self.bench, self.sent, self.has_room = bench, b"", True
        headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": "/generate", "headers": headers, "query_string": b""}
        scope |= {"http_version": "1.1", "scheme": "http", "root_path": "", "client": None, "server": None}
        if has_connection:
            scope[DIRECT_CONNECTION] = self
        self._received = iter([{"type": "http.request", "body": BODY, "more_body": False}])
        self.task = asyncio.create_task(bench.app(scope, self._receive, self._send))

    def write(self, body: bytes) -> bool:
        if self.has_room:
            self.sent += body
        return self.has_room

    async def _receive(self) -> dict:
        message = next(self._received, None)
        if message is None:
            await asyncio.Event().wait()
        return message

    async def _send(self, message: dict) -> None:
        self.sent += message.get("body", b"")

    def events(self) -> list[tuple[str, dict]]:
        frames = [frame.split(b"\n") for frame in self.sent.split(b"\n\n") if frame]
        return [(name[7:].decode(), json.loads(data[6:])) for name, data in frames]

    def ids(self) -> list[int]:
        return [token["id"] for name, event in self.events() if name == "token" for token in event["tokens"]]


async def begin(bench: Bench, count: int, has_connection: bool = True) -> tuple[list[Stream], list[int]]:
    """Start `count` streams and send the first token of each. Returns the streams and the ids of their sequences."""
    bench.become_ready()
    streams, ids = [], []
    for _ in range(count):
        streams.append(Stream(bench, has_connection))
        ids += [row.sequence_id for row in await bench.sent_rows()]
    bench.output(tokens=[Tokens(sequence_id, [100]) for sequence_id in ids])
    while not all(stream.ids() for stream in streams):
        await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)  # after that, each stream waits for the next step
    return streams, ids


def finished(sequence_id: int, *tokens: int) -> Finished:
    return Finished(sequence_id, [Hypothesis(list(tokens), "length")], 0.0, 0.0, 0.0)


async def test_a_step_is_written_to_all_streams_at_once(bench: Bench) -> None:
    streams, ids = await begin(bench, 3)
    bench.output(tokens=[Tokens(sequence_id, [101]) for sequence_id in ids])
    assert [stream.ids() for stream in streams] == [[100, 101]] * 3  # in the same iteration of the event loop
    bench.output(finished=[finished(sequence_id, 100, 101) for sequence_id in ids])
    await asyncio.gather(*(stream.task for stream in streams))
    assert all(stream.events()[-1][0] == "done" for stream in streams)


@pytest.mark.parametrize("has_connection", [True, False])
async def test_a_slow_client_gets_all_events_in_order_and_delays_no_other(bench: Bench, has_connection: bool) -> None:
    streams, ids = await begin(bench, 2, has_connection)
    slow, other = streams
    slow.has_room = False
    for token in (101, 102, 103):
        bench.output(tokens=[Tokens(sequence_id, [token]) for sequence_id in ids])
        if has_connection:
            assert other.ids()[-1] == token and slow.ids() == [100]
    slow.has_room = True
    bench.output(tokens=[Tokens(sequence_id, [104]) for sequence_id in ids])
    bench.output(finished=[finished(sequence_id, 100, 101, 102, 103, 104) for sequence_id in ids])
    await asyncio.gather(slow.task, other.task)
    assert slow.ids() == other.ids() == [100, 101, 102, 103, 104]
    (*_, (name, done)) = slow.events()
    assert name == "done" and done["usage"]["completion_tokens"] == 5


async def test_a_failed_stream_ends_with_an_error_event_and_the_others_continue(bench: Bench) -> None:
    (failing, other), ids = await begin(bench, 2)
    bench.output(tokens=[Tokens(ids[1], [101])], failed=[Failed(ids[0], "engine_error", "no")])
    assert other.ids() == [100, 101]
    await failing.task
    assert failing.events()[-1][0] == "error" and other.events()[-1][0] == "token"
    bench.output(finished=[finished(ids[1], 100, 101)])
    await other.task
