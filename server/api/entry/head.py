"""`HEAD` for every `GET` route (RFC 9110, section 9.3.2): the same answer without its body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

IS_HEAD = "triptych.head"
"""Key of the scope of a request that asks for headers only, while a route answers it as `GET`."""


_RANGES = frozenset({b"range", b"if-range"})
"""Headers that ask for a part of a body. They mean something for `GET` alone (RFC 9110, section 14.2)."""


class HeadMiddleware:
    """Lets the application answer `HEAD` as `GET`, and drops the body.

    The application gets a scope of its own: the ASGI server reads the method of the original one while it sends.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)}
            await send(message)

        headers = scope["headers"]
        whole = [header for header in headers if header[0] not in _RANGES]
        as_get = {**scope, "method": "GET", "headers": whole, IS_HEAD: True}
        try:
            await self.app(as_get, receive, send_head)
        finally:
            # The access log and the metrics read what the application has found out, such as the route.
            scope.update(as_get | {"method": "HEAD", "headers": headers})
