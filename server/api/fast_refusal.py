"""Refuse requests of a full server in the HTTP protocol, without a task, the middleware or a route.

An overloaded server may receive ten times the requests that it can answer. Such a refusal takes a small part of the
time of one that passes through ASGI, so that it takes little from the requests in progress. Requests that need more
than this (a key in a field of the body, a traced request, another error format, a page of another origin) and those
under another ASGI server are refused by `RequestMiddleware`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from server.api.dialects.registry import error_shape
from server.api.error_shape import ErrorShape
from server.api.middleware import error_response, request_id_of, sent_key, without_slash
from server.api.route import ERROR_FORMAT
from server.api.state import State
from server.errors import Overloaded

log = logging.getLogger("triptych.door")

LOG_SECONDS = 1.0
"""Time that one line of the log covers. A line for each refusal would cost more than the refusal."""


class FastRefusals:
    """Answers requests that the door refuses. state: of the application."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._refused = 0
        self._shape = lru_cache(256)(self._find_shape)

    def __call__(self, scope: Scope) -> Response | None:
        """The refusal of a request whose headers have arrived, or None if the application must answer it."""
        state = self._state
        if scope["method"] != "POST" or state.draining or state.tracing is not None:
            return None
        headers = Headers(scope=scope)
        try:
            state.door.check(scope, headers)
            return None
        except Overloaded as error:
            overloaded = error
        if ERROR_FORMAT in headers or (state.settings.cors_origins and "origin" in headers):
            return None
        if state.keys and state.keys.find(sent_key(headers)) is None:
            return None
        request_id = request_id_of(headers)
        response = error_response(overloaded, request_id, state, self._shape(without_slash(scope["path"])))
        response.headers["x-request-id"] = request_id
        metrics = state.runtime.metrics
        metrics.requests.labels("unmatched", str(response.status_code)).inc()
        metrics.request_seconds.labels("unmatched").observe(0.0)
        self._count(overloaded)
        return response

    def _find_shape(self, path: str) -> ErrorShape:
        return error_shape(Request({"type": "http", "path": path, "headers": []}), self._state.settings.dialect_errors)

    def _count(self, error: Overloaded) -> None:
        if not self._refused:
            asyncio.get_running_loop().call_later(LOG_SECONDS, self._log, error.message)
        self._refused += 1

    def _log(self, reason: str) -> None:
        log.warning("refused %d requests within %g s: %s", self._refused, LOG_SECONDS, reason)
        self._refused = 0
