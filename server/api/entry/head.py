"""Answer `HEAD` requests for every `GET` route, with the same headers and no body (RFC 9110, section 9.3.2)."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

IS_HEAD = "triptych.head"
"""Key in the ASGI scope: True for a `HEAD` request, which routes see as `GET`. Absent for other requests."""


_RANGES = frozenset({b"range", b"if-range"})
"""Headers that ask for a part of a body. They are removed: they apply only to `GET` (RFC 9110, section 14.2)."""


class HeadMiddleware:
    """Lets the application answer a `HEAD` request as `GET`, and drops the body.

    The application gets a copy of the scope, because the ASGI server reads the method of the original scope while it
    sends. Afterwards the original scope gets the keys that the application has added.
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
