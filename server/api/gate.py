"""The door of the server, around every route: request id, key, draining, counting, one log line. Pure ASGI.

Runs before routing, so that a request without a key learns nothing, not even which routes exist.
"""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.dialects.registry import error_shape
from server.api.sse import dumps
from server.api.state import State
from server.errors import NotReady, RequestError, Unauthorized
from server.settings import key_matches

log = logging.getLogger("triptych.access")

OPEN_ROUTES = frozenset({"/health", "/ready"})
OPERATIONS = frozenset({"/health", "/ready", "/info", "/metrics", "/openapi.json", "/docs"})
"""Routes that are answered while draining."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Gate:
    """Wraps the application. `state` is the server's."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope["triptych.arrival"] = started
        scope["triptych.request_id"] = request_id
        status = 0

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        counted = scope["path"] not in OPERATIONS
        self.state.answering += counted
        try:
            try:
                scope["triptych.cache_salt"] = self._check(scope["path"], headers)
            except RequestError as error:
                await error_response(error, request_id, self.state)(scope, receive, marked)
            else:
                await self.app(scope, receive, marked)
        except Exception:
            # The application has answered and logged it, or cannot answer any more: returning closes the connection.
            if not status:
                raise
        finally:
            self.state.answering -= counted
            self._count(scope, status, time.monotonic() - started, request_id)

    def _check(self, path: str, headers: Headers) -> str:
        """Let the request in, or raise. Returns what keeps its prompts apart from those of other keys."""
        salt = ""
        if path not in OPEN_ROUTES and self.state.keys:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            sent = key.strip().encode("utf-8", "replace")
            if scheme.lower() != "bearer" or not key_matches(sent, self.state.keys):
                raise Unauthorized("send a valid API key as `Authorization: Bearer KEY`")
            salt = self.state.cache_salt(sent)
        if self.state.draining and path not in OPERATIONS:
            raise NotReady("the server is shutting down", retry_after=5)
        return salt

    def _count(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        path = scope["path"]
        route = getattr(scope.get("route"), "path", path if path in OPERATIONS else "unmatched")
        metrics = self.state.metrics
        metrics.requests.labels(route, str(status or 499)).inc()
        metrics.request_seconds.labels(route).observe(seconds)
        if self.state.settings.access_log:
            level = logging.DEBUG if route in OPERATIONS else logging.INFO
            log.log(level, "%s %s %d %.1fms %s", scope["method"][:8], route, status or 499, seconds * 1000, request_id)


def error_response(error: RequestError, request_id: str, state: State, path: str = "") -> Response:
    """The error in the shape of the path's dialect, counted by its code."""
    if error.status != 499:  # counted as cancelled, where it was noticed
        state.metrics.rejected.labels(error.code).inc()
    headers = {}
    if error.status in (429, 503):
        headers["retry-after"] = str(error.retry_after or 1)
    if error.status == 408:
        headers["connection"] = "close"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    shape = error_shape(path)
    return Response(dumps(shape.body(error, request_id)), shape.status(error), headers, "application/json")
