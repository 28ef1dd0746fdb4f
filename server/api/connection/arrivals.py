"""Refuse or start each request inside the HTTP protocol, where a refusal needs no task, no middleware and no route.

An overloaded server may receive ten times the requests that it can answer. A refusal in the protocol takes much less
time than a refusal that passes through ASGI, so it delays the requests in progress less. While requests are refused,
the event loop does not interrupt the worker's steps: see decision 99.

If one of several models is full, this module reads the model's name from the body. It leaves some requests to
`RequestMiddleware` and the operations, which refuse them: those with a key in a field of the body, traced requests,
requests for another error format, and requests from a web page. Under another ASGI server they refuse all requests.

A request starts when it arrives. If many arrive at the same time, the later ones start in the next iterations of the
event loop, so that a thousand of them do not delay all other work. Requests that have not started yet count as in
progress.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from server.api.dialects.registry import OPERATION_PATHS, default_models, error_shape
from server.api.entry.headers import headers_of
from server.api.entry.middleware import error_response, record, request_id_of, sent_key, without_slash
from server.api.entry.page_check import check_single_host
from server.api.entry.scope import KEY_LIMITS
from server.api.routes.error_shape import ErrorShape
from server.api.routes.route import ERROR_FORMAT
from server.api.state import State
from server.errors import Overloaded, RequestError
from server.operations.model_names import PLACEHOLDER_NAMES
from server.system.cores import steps_uninterrupted

log = logging.getLogger("triptych.door")

LOG_SECONDS = 1.0
"""All refusals within this period are reported in one warning. The access log, if it is on, has a line for each."""
MAX_BODY_BYTES = 1 << 14
"""The model's name is not read from a larger body, because parsing it would take longer than a refusal may take."""
BURST_STARTS = 64
"""Requests that an idle server starts in one iteration of the event loop, so that they are all in its first step."""
STARTS_PER_ITERATION = 8
"""Requests that a busy server starts in one iteration, which takes 10 ms. Refusals are sent between the iterations."""


class _Body(msgspec.Struct):
    """The only field of a request body that is parsed here: the name of the model."""

    model: str | None = None


_decode = msgspec.json.Decoder(_Body).decode


class Arrivals:
    """Receives requests from the HTTP protocol, and refuses them or starts them in turn."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._refused: Counter[str] = Counter()
        self._shape = lru_cache(256)(self._find_shape)
        self._default_models: dict[str, str] = {}
        self._waiting: deque[tuple[str, Callable[[], None]]] = deque()
        self._started: list[str] = []
        self._models: Counter[str] = Counter()
        """Number of requests that have not started, or whose task has not run yet, by model.

        Empty name: no known model.
        """
        self._preparing = ExitStack()
        self._refusing = ExitStack()

    def __call__(self, scope: Scope, body: bytearray | None, start: Callable[[], None]) -> Response | None:
        """Return a response that refuses the request, or None if the application will answer it.

        scope: ASGI scope of a request whose headers have arrived.
        body: the complete body, or None if parts of it are missing.
        start: hands the request to the application. Called now or soon, unless the request is refused.
        """
        if scope["method"] != "POST":
            start()
            return None
        began = time.monotonic()
        path, headers, model = without_slash(scope["path"]), headers_of(scope), ""
        try:
            self._state.door.check(scope, headers, self._models.total())
            admission = self._state.runtime.admission
            if body and admission.models > 1 and (model := self._model(path, body)):
                admission.check_share(model, self._models[model])
        except Overloaded as error:
            if self._may_refuse(scope, headers):
                return self._refusal(error, {**scope, "path": path}, headers, began)
        if not self._models:
            self._preparing.enter_context(self._state.runtime.client.preparing())
            asyncio.get_running_loop().call_soon(self._start_next)
        self._models[model] += 1
        if not self._waiting and len(self._started) < self._most_starts:
            self._start(model, start)
        else:
            self._waiting.append((model, start))
        return None

    @property
    def _most_starts(self) -> int:
        """Number of requests to start in one iteration of the event loop."""
        return STARTS_PER_ITERATION if self._state.door.requests else BURST_STARTS

    def _start(self, model: str, start: Callable[[], None]) -> None:
        self._started.append(model)
        start()

    def _start_next(self) -> None:
        """Start the next requests, and schedule the next call as long as requests wait.

        The requests of the last iteration are no longer counted here: `Door` and admission have counted them by now.
        """
        for model in self._started:
            self._models[model] -= 1
        self._started.clear()
        if not self._waiting:
            self._models.clear()
            self._preparing.close()
            return
        asyncio.get_running_loop().call_soon(self._start_next)
        for _ in range(min(len(self._waiting), self._most_starts)):
            self._start(*self._waiting.popleft())

    def _model(self, path: str, body: bytearray) -> str:
        """Name of the model that a request is for, or an empty string if only the application can find it out."""
        if path not in OPERATION_PATHS or len(body) > MAX_BODY_BYTES:
            return ""
        try:
            name = _decode(body).model
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Neither JSON nor text, or nested too deeply. The application answers with the reason.
            return ""
        runtime = self._state.runtime
        if runtime.registry is not None:
            # Which model answers depends on what is loaded, and admission counts the request soon enough.
            return "" if name is None or name not in runtime.texts else name
        self._default_models = self._default_models or default_models(runtime)
        if name is None or (name in PLACEHOLDER_NAMES and name not in runtime.texts):
            name = self._default_models.get(path, "")
        return name if name in runtime.texts else ""

    def _may_refuse(self, scope: Scope, headers: Headers) -> bool:
        """Whether the application would send the same refusal, so that it can be sent here.

        False if it would answer with another error (such as a wrong key or host), or in another format.
        Puts the limits of the API key into `scope`.
        """
        state = self._state
        if state.draining or state.tracing is not None or ERROR_FORMAT in headers:
            return False
        if "origin" in headers or "sec-fetch-site" in headers:
            return False
        try:
            check_single_host(scope, headers)
            if not state.keys:
                state.page_check.check(scope, headers)
        except RequestError:
            return False
        if state.keys:
            limits = state.keys.find(sent_key(headers))
            if limits is None:
                return False
            scope[KEY_LIMITS] = limits
        return True

    def _refusal(self, error: Overloaded, scope: Scope, headers: Headers, began: float) -> Response:
        scope["triptych.request_id"] = request_id = request_id_of(headers)
        response = error_response(error, scope, self._state, self._shape(scope["path"]))
        response.headers["x-request-id"] = request_id
        record(self._state, scope, response.status_code, time.monotonic() - began)
        if not self._refused:
            self._refusing.enter_context(steps_uninterrupted())
            asyncio.get_running_loop().call_later(LOG_SECONDS, self._end_of_period, error.message)
        self._refused[error.reason] += 1
        return response

    def _find_shape(self, path: str) -> ErrorShape:
        return error_shape(Request({"type": "http", "path": path, "headers": []}), self._state.settings.dialect_errors)

    def _end_of_period(self, message: str) -> None:
        """Write the warning about the refusals of a period. message: message of the first refusal."""
        self._refusing.close()
        numbers = ", ".join(f"{reason}: {count:,}" for reason, count in self._refused.items())
        log.warning(
            "refused %d requests within %g s (%s); the first: %s", self._refused.total(), LOG_SECONDS, numbers, message
        )
        self._refused.clear()
