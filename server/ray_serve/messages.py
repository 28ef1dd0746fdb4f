"""Pass an ASGI request from the ingress to a replica, and its answer back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import ASGIApp, Message, Scope

_SCOPE_KEYS = (
    *("type", "asgi", "http_version", "method", "scheme", "query_string", "headers", "client", "server"),
    *("path", "raw_path"),
)


def portable_scope(scope: Scope) -> Scope:
    """Return the members of an ASGI scope that a replica needs. All of them can be sent to another process.

    The route prefix of the Ray Serve application is removed from the path.
    """
    portable = {key: scope[key] for key in _SCOPE_KEYS if key in scope}
    root = scope.get("root_path", "")
    if root and scope["path"].startswith(root):
        portable["path"] = scope["path"][len(root) :] or "/"
        portable.pop("raw_path", None)
    return portable


async def answer(app: ASGIApp, scope: Scope, body: bytes) -> AsyncGenerator[list[Message], None]:
    """Run an ASGI application for one request, and yield its messages in batches, as they come.

    Closing or cancelling the generator means that the client has disconnected. The application then receives
    `http.disconnect`, and may end later; messages that it sends afterwards are dropped.
    """
    messages: list[Message] = []
    news = asyncio.Event()
    gone = asyncio.Event()
    unread = [body]

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if not gone.is_set():
            messages.append(message)
            news.set()

    async def run() -> None:
        await app(scope, receive, send)

    task = asyncio.create_task(run(), name="request")
    task.add_done_callback(lambda _: news.set())
    try:
        while not task.done() or messages:
            await news.wait()
            news.clear()
            if messages:
                batch = messages[:]
                messages.clear()
                yield batch
        task.result()
    finally:
        gone.set()
        if not task.done():
            _leaving.add(task)
            task.add_done_callback(_left)


_leaving: set[asyncio.Task[None]] = set()
"""Running tasks of requests whose client is gone. The event loop itself has only weak references to tasks."""


def _left(task: asyncio.Task[None]) -> None:
    _leaving.discard(task)
    if not task.cancelled():
        task.exception()
