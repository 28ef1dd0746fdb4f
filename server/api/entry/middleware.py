"""ASGI middleware around every route: request id, check of host and origin, API key, draining, metrics, access log.

It runs before routing, so that a request without a valid key cannot find out which routes exist.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import get_args

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.bodies.sse import dumps
from server.api.dialects.registry import KEYS_IN_FIELDS, error_shape, has_secret, route_path
from server.api.entry.door import OVER_CONNECTION_LIMIT, is_counted_in_parts
from server.api.entry.headers import headers_of
from server.api.entry.page_check import check_single_host
from server.api.entry.rejections import count_error
from server.api.entry.scope import CACHE_SALT, KEY_LIMITS, REFUSAL, TRACE
from server.api.fields.keys import KEY_DEFERRED
from server.api.pages import docs_page, playground_page
from server.api.routes.error_shape import ErrorShape
from server.api.routes.route import ERROR_FORMAT
from server.api.state import State
from server.api.telemetry.access_log import log_request
from server.errors import InvalidRequest, NotReady, RequestError, Unauthorized
from server.log_format import REQUEST_ID
from server.settings.entries import ErrorDialect

PUBLIC_PATHS = frozenset({"/health", "/ready", *docs_page.PAGE.files, *playground_page.FILES})
"""Paths that need no API key for `GET` and `HEAD`."""
OPERATIONS_PATHS = PUBLIC_PATHS | {"/info", "/metrics", "/openapi.json"}
"""Paths that are answered while the server drains, for `GET` and `HEAD`. Requests to them do not delay the shutdown."""

UNMATCHED = "unmatched"
"""Name that stands for the route in metrics if a request's path has no route."""
_KEY_SCHEMES = frozenset({"bearer", "deepl-auth-key"})
"""Schemes of the header `Authorization` that are followed by the API key, in lower case."""
KEY_SUBPROTOCOL = "openai-insecure-api-key."
"""Prefix of a WebSocket subprotocol that contains the API key. OpenAI's clients in web pages send the key this way."""
_ERROR_FORMATS = frozenset(get_args(ErrorDialect))
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestMiddleware:
    """Checks and counts each HTTP request and WebSocket connection before the application handles it, and logs its end.

    Adds to the scope: `triptych.arrival` (float, seconds of the monotonic clock), `triptych.request_id` (str),
    `triptych.key_limits` (KeyLimits, for a request with a key) and `triptych.cache_salt` (str, separates the prefix
    cache entries of different API keys).

    needs_key: check API keys, if the server has any.
    any_host: accept any `Host` if API keys are not checked.
    """

    def __init__(self, app: ASGIApp, state: State, needs_key: bool = True, any_host: bool = False) -> None:
        self.app = app
        self.state = state
        self._needs_key = needs_key
        self._any_host = any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_socket = scope["type"] == "websocket"
        if is_socket:
            scope["method"] = "GET"  # of the handshake (RFC 6455, section 4.1); ASGI leaves it out
        elif scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        scope["path"] = without_slash(scope["path"])
        headers = headers_of(scope)
        request_id = request_id_of(headers)
        scope["triptych.arrival"] = started
        scope["triptych.request_id"] = request_id
        REQUEST_ID.set(request_id)
        status = 0
        tracing = None if is_socket or _reads(scope, OPERATIONS_PATHS) else self.state.tracing
        if tracing is not None:
            scope[TRACE] = tracing.begin(scope, headers, started, request_id)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            is_accepted = message["type"] == "websocket.accept"
            if is_accepted or message["type"].endswith("http.response.start"):
                status = 101 if is_accepted else message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                if scope.get(OVER_CONNECTION_LIMIT) and not is_accepted:
                    MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            self.state.door.receive(scope, received)
            return message

        delays_shutdown = not _reads(scope, OPERATIONS_PATHS)
        self.state.answering += delays_shutdown
        entered = False
        try:
            try:
                self._check(scope, headers)
                if delays_shutdown:
                    self.state.door.enter(scope, headers)
                    entered = True
            except RequestError as error:
                shape = error_shape(Request({**scope, "type": "http"}), self.state.settings.dialect_errors)
                await error_response(error, scope, self.state, shape)(scope, receive, send_with_id)
            else:
                # A body with a length was counted as it was announced. Live audio is dropped when it was decoded.
                counted = entered and "content-length" not in headers and not is_counted_in_parts(scope["path"])
                await self.app(scope, receive_counted if counted else receive, send_with_id)
        except Exception:
            # If a status was sent, the application has logged the error, and returning closes the connection.
            if not status:
                raise
        finally:
            self.state.answering -= delays_shutdown
            if entered:
                self.state.door.leave(scope)
            record(self.state, scope, status or 499, time.monotonic() - started)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Check host, origin and API key of a request. Puts the limits and the cache salt of the key into the scope.

        If the headers have no key and the path takes keys in a field, the route checks the key before anything else
        (`keys.authorize`).

        Raises BadHost for a wrong number of `Host` headers, Forbidden for a foreign web page or host, Unauthorized
        without a valid key, NotReady while the server drains, and InvalidRequest for an unknown error format.
        """
        check_single_host(scope, headers)
        needs_key = self._needs_key and bool(self.state.keys)
        if not needs_key:
            self.state.page_check.check(scope, headers, self._any_host)
        if headers.get(ERROR_FORMAT, "native") not in _ERROR_FORMATS:
            raise InvalidRequest("the header X-Error-Format must be native or tei", ERROR_FORMAT)
        salt = ""
        if needs_key and not _reads(scope, PUBLIC_PATHS):
            key = sent_key(headers) or (subprotocol_key(scope) if scope["type"] == "websocket" else b"")
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            if has_secret(scope["path"]):
                pass
            elif not key and (method, scope["path"]) in KEYS_IN_FIELDS:
                scope[KEY_DEFERRED] = True
            else:
                limits = self.state.keys.find(key)
                if limits is None:
                    raise Unauthorized("send a valid API key as `Authorization: Bearer KEY` or `x-api-key: KEY`")
                scope[KEY_LIMITS] = limits
                salt = self.state.cache_salt(key)
        if self.state.draining and not _reads(scope, OPERATIONS_PATHS):
            raise NotReady("the server is shutting down", retry_after=5)
        if KEY_DEFERRED not in scope:
            scope[CACHE_SALT] = salt


def record(state: State, scope: Scope, status: int, seconds: float) -> None:
    """Count an ended request in the metrics, log it, and end its trace span.

    status: HTTP status that was sent; 499 if the client disconnected before any was sent.
    seconds: duration of the request.
    """
    route = _route(scope)
    metrics = state.runtime.metrics
    metrics.requests.labels(route, str(status)).inc()
    metrics.request_seconds.labels(route).observe(seconds)
    if state.settings.access_log:
        level = logging.DEBUG if _reads(scope, OPERATIONS_PATHS) else logging.INFO
        # A secret in a path is not logged: the route is, as it is written.
        path = route if has_secret(scope["path"]) else scope["path"]
        log_request(scope, level, status, seconds, None if route == UNMATCHED else path)
    if state.tracing is not None and TRACE in scope:
        state.tracing.end(scope[TRACE], scope, status, None if route == UNMATCHED else route)


def _route(scope: Scope) -> str:
    """Path template of the request's route, such as `/models/{model}`, or `UNMATCHED`."""
    path = scope["path"]
    if "route" in scope:
        return str(getattr(scope["route"], "path", UNMATCHED))
    if path in OPERATIONS_PATHS:
        return str(path)
    # A request that was refused before routing.
    return (route_path(path) if REFUSAL in scope else None) or UNMATCHED


def without_slash(path: str) -> str:
    """Remove the last slash of a path, which some clients add. Pages keep it, because their links are relative."""
    return path[:-1] if path.endswith("/") and path[:-1] not in ("", *docs_page.PAGE.files) else path


def _reads(scope: Scope, paths: frozenset[str]) -> bool:
    """Whether a request is a `GET` or `HEAD` of one of the paths. `POST` may run a model on the same path."""
    return scope["type"] == "http" and scope["path"] in paths and scope["method"] in ("GET", "HEAD")


def request_id_of(headers: Headers) -> str:
    """The request id from the header `X-Request-Id`, or a new one if it is absent or malformed."""
    sent = headers.get("x-request-id", "")
    return sent if _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex


def sent_key(headers: Headers) -> bytes:
    """The API key of a request, from `Authorization` or `X-Api-Key`. Empty if the request has none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() not in _KEY_SCHEMES:
        key = headers.get("x-api-key", "")
    return key.strip().encode("utf-8", "replace")


def subprotocol_key(scope: Scope) -> bytes:
    """The API key among the subprotocols of a WebSocket handshake; empty if there is none.

    Web pages send the key as a subprotocol, because they cannot set headers of a handshake.
    """
    keys = (name.removeprefix(KEY_SUBPROTOCOL) for name in scope["subprotocols"] if name.startswith(KEY_SUBPROTOCOL))
    return next(keys, "").encode("utf-8", "replace")


def error_response(error: RequestError, scope: Scope, state: State, shape: ErrorShape) -> Response:
    """Create the response for an error in the format of a dialect, and count the error in the metrics."""
    count_error(error, state.runtime.metrics, scope)
    headers = {}
    if error.status in (429, 503):
        headers["retry-after"] = str(error.retry_after or 1)
    if error.status == 408:
        headers["connection"] = "close"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    body = dumps(shape.render(error, scope["triptych.request_id"]))
    return Response(body, shape.status(error), headers, "application/json")
