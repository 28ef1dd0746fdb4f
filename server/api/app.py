"""The FastAPI application: routes, error handlers, the OpenAPI document. `State` holds everything that routes use."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import cache

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from server.api.background import with_background
from server.api.dialects.registry import (
    CLIENTS,
    GET_ROUTES,
    OWNED_ROUTES,
    ROUTES,
    add_routes,
    error_shape,
    tags,
    with_paths,
)
from server.api.entry.forwarded import ForwardedMiddleware
from server.api.entry.head import HeadMiddleware
from server.api.entry.middleware import RequestMiddleware, error_response
from server.api.pages import docs_page, playground_page
from server.api.routes import status_routes
from server.api.routes.documents import DESCRIPTION, document
from server.api.state import State
from server.api.telemetry.telemetry import version
from server.errors import EngineFailure, MethodNotAllowed, NotFound, NotReady, RequestError
from server.log_format import fault_place
from server.settings.settings import is_loopback

log = logging.getLogger("triptych.api")

Lifespan = Callable[[], AbstractAsyncContextManager[None]]


def create_api(state: State, lifespan: Lifespan = nullcontext) -> ASGIApp:
    """Create the ASGI application.

    state: shared by all routes.
    lifespan: returns the context manager that is entered when the ASGI server starts and exited when it stops.
    """
    app: ASGIApp = RequestMiddleware(HeadMiddleware(create_routes(state, lifespan)), state)
    if proxies := state.settings.trusted_proxies:
        app = ForwardedMiddleware(app, proxies)
    if origins := state.settings.cors_origins:
        # Outside of the key check: a browser sends a preflight request without any key.
        methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
        app = CORSMiddleware(app, origins, methods, ("*",), expose_headers=("*",))
    return app


def create_routes(state: State, lifespan: Lifespan = nullcontext) -> FastAPI:
    """Create the FastAPI application without the middleware around it, so that tests can read the route table."""
    app = FastAPI(
        title="Triptych",
        version=version(),
        description=DESCRIPTION,
        lifespan=lambda app: with_background(state, lifespan),
        docs_url=None,
        redoc_url=None,
    )
    app.state.triptych = state
    add_routes(app)
    app.include_router(status_routes.probes)
    app.include_router(status_routes.router)
    if state.settings.metrics_port is None:
        app.include_router(status_routes.metrics_router)
    app.include_router(docs_page.router)
    app.include_router(playground_page.router)

    add_error_handlers(app, state)
    status_answers = (status_routes.Status, status_routes.InfoAnswer)
    clients = {name: text for name, (text, _) in CLIENTS.items()}
    routes = (*GET_ROUTES, *OWNED_ROUTES)
    app.openapi = cache(lambda: document(app, ROUTES, routes, status_answers, clients, tags()))  # type: ignore[method-assign]
    return app


def create_monitoring(state: State) -> ASGIApp:
    """Create the application of the metrics port. It checks API keys unless the port is on a loopback address.

    On any other address, the header `Host` of a request may have any value, because Prometheus calls a service by its
    name in the cluster.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.triptych = state
    app.include_router(status_routes.probes)
    app.include_router(status_routes.metrics_router)
    add_error_handlers(app, state)
    is_local = is_loopback(state.settings.metrics_host)
    return RequestMiddleware(HeadMiddleware(app), state, needs_key=not is_local, any_host=not is_local)


def add_error_handlers(app: FastAPI, state: State) -> None:
    """Register handlers that answer every error in the format of the request's dialect."""

    def answer(request: Request, error: RequestError) -> Response:
        named = with_paths(error, request.scope["path"])
        return error_response(named, request.scope, state, error_shape(request, state.settings.dialect_errors))

    async def on_request_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return answer(request, error)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            response = answer(request, MethodNotAllowed("this route does not take this method"))
            response.headers.update(error.headers or {})
            return response
        return answer(request, NotFound("there is no such route"))

    async def on_fault(request: Request, error: Exception) -> Response:
        place = getattr(request.scope.get("route"), "path", "no route")
        log.error("fault in %s, request %s:\n%s", place, request.scope["triptych.request_id"], fault_place(error))
        return answer(request, EngineFailure("a fault in the server"))

    async def on_no_memory(request: Request, error: Exception) -> Response:
        place = getattr(request.scope.get("route"), "path", "no route")
        log.error("no memory in %s, request %s", place, request.scope["triptych.request_id"])
        return answer(request, NotReady("the server has no memory left for this request", retry_after=2))

    app.add_exception_handler(MemoryError, on_no_memory)
    app.add_exception_handler(RequestError, on_request_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_fault)
