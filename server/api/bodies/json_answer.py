"""Responses with one JSON document. A small one is rendered and sent at once, a large one in a thread and in pieces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api.bodies.json_pieces import dump, pieces
from server.api.bodies.sse import STALL_SECONDS, watch_disconnect
from server.ipc.client.call import Call
from server.operations.pools import Pool

MAX_INLINE = 2048
"""A result with fewer numbers and strings than this is rendered on the event loop, in a few milliseconds."""
MEDIA_TYPE = "application/json"


def json_response(value: Any) -> Response:
    """Response with a JSON value as its body. Arrays and iterators become lists."""
    return Response(dump(value), media_type=MEDIA_TYPE)


async def json_answer(render: Callable[[], Any], size: int, pool: Pool, call: Call) -> Response:
    """Response for the result of a finished operation.

    render: creates the JSON value.
    size: count of numbers and strings in the value, or an estimate.
    pool: threads for large answers.
    call: closed when the answer is sent. Until then it keeps its reservations, even if the client reads slowly.
    """
    if size < MAX_INLINE:
        with call:
            return json_response(render())
    parts = pool.iterate(_pieces(render))
    try:
        first = await anext(parts)
        second = await anext(parts, None)
    except BaseException:
        call.close()
        raise
    if second is None:
        call.close()
        return Response(first, media_type=MEDIA_TYPE)
    return PiecewiseResponse(first + second, parts, call)


def _pieces(render: Callable[[], Any]) -> Iterator[bytes]:
    yield from pieces(render())


class PiecewiseResponse(Response):
    """Response that sends a JSON document in chunks. A piece is rendered after the piece before it has been sent.

    The result is complete before the first byte is sent. After that, sending ends early only if the client disconnects
    or reads nothing for `STALL_SECONDS`.

    first: the beginning of the document.
    parts: the other pieces.
    call: closed at the end.
    """

    def __init__(self, first: bytes, parts: AsyncGenerator[bytes, None], call: Call) -> None:
        super().__init__(media_type=MEDIA_TYPE)
        del self.headers["content-length"]
        self._first = first
        self._parts = parts
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(watch_disconnect(receive, self._call.leave))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await _send(send, self._first)
            async with contextlib.aclosing(self._parts):
                async for piece in self._parts:
                    if self._call.gone:
                        return
                    await _send(send, piece)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:  # The client reads nothing, or another ASGI server reports that it has disconnected.
            return
        finally:
            self._call.close()
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving


async def _send(send: Send, piece: bytes) -> None:
    async with asyncio.timeout(STALL_SECONDS):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
