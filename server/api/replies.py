"""A run's answer, whole or streamed, with the client watched all the while.

Nothing is sent before the first news of the engine, so that a failure until then still gets its proper status. After
the first byte a failure is one `error` event, and the stream ends without `done`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.api.answers import Delta, Run
from server.api.sse import EventStream, EventWriter, frame, watch_disconnect
from server.api.state import State
from server.errors import ClientGone, RequestError


def json_response(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


@contextlib.asynccontextmanager
async def attended(request: Request, leave: Callable[[], None]) -> AsyncIterator[None]:
    """While inside, `leave` is called when the client goes away. The body must have been read."""
    watcher = asyncio.create_task(watch_disconnect(request.receive, leave))
    try:
        yield
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


async def reply(
    request: Request,
    state: State,
    run: Run,
    stream: bool,
    token_events: Callable[[list[Delta]], list[dict[str, Any]]],
    answer: Callable[[], dict[str, Any]],
) -> Response:
    """Wait for the answer and give it whole, or give it as events.

    token_events: the `token` events of some news. answer: the whole answer, once all is done.
    """
    if not stream:
        with run.call:
            async with attended(request, run.call.leave):
                await run.complete()
        return json_response(answer())
    try:
        async with attended(request, run.call.leave):
            first = await run.begin()
    except BaseException:
        run.call.close()
        raise

    return EventStream(lambda writer: _events(request, state, run, first, writer, token_events, answer), run.call.leave)


async def _events(
    request: Request,
    state: State,
    run: Run,
    first: list[Delta],
    writer: EventWriter,
    token_events: Callable[[list[Delta]], list[dict[str, Any]]],
    answer: Callable[[], dict[str, Any]],
) -> AsyncGenerator[bytes, None]:
    def take(deltas: list[Delta]) -> bool:
        news = [frame("token", event) for event in token_events(deltas)]
        return not news or writer.write(news[0] if len(news) == 1 else b"".join(news))

    state.metrics.streams_open.inc()
    try:
        with run.call:
            if not take(first):
                yield writer.take()
            while await run.forward(take):
                yield writer.take()
            yield frame("done", answer())
    except ClientGone:
        raise
    except RequestError as error:
        state.metrics.rejected.labels(error.code).inc()
        yield frame("error", error.body(request.scope["triptych.request_id"]))
    finally:
        state.metrics.streams_open.dec()
