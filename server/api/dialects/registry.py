"""Tables of the routes of all dialects, and look-ups by path: route, error format, default model."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.routing import compile_path

from server.api.dialects import deepl, libretranslate, lm_eval, whisper_cpp
from server.api.dialects.anthropic import routes as anthropic
from server.api.dialects.anthropic.routes import ERRORS as ANTHROPIC_ERRORS
from server.api.dialects.cohere import routes as cohere
from server.api.dialects.huggingface import hub, info, tei, tgi
from server.api.dialects.native import routes as native
from server.api.dialects.native.adapter_routes import ADAPTER_ROUTES
from server.api.dialects.native.model_routes import MODEL_ROUTES
from server.api.dialects.native.sequence_routes import SEQUENCE_ROUTES
from server.api.dialects.ollama import routes as ollama
from server.api.dialects.ollama.answers import ERRORS as OLLAMA_ERRORS
from server.api.dialects.openai import routes as openai
from server.api.dialects.openai.audio import realtime
from server.api.dialects.openai.common import ERRORS as OPENAI_ERRORS
from server.api.routes.documents import describe, describe_get, describe_shared, describe_state
from server.api.routes.error_shape import NATIVE_ERRORS, ErrorShape
from server.api.routes.get_route import GetRoute
from server.api.routes.literal_paths import LiteralPaths
from server.api.routes.owned_route import OwnedRoute
from server.api.routes.request_route import RequestRoute
from server.api.routes.route import ERROR_FORMAT, ERROR_SHAPE, Route, SharedPath
from server.api.routes.state_route import StateRoute
from server.errors import InvalidRequest, ModelNotFound, NotReady, RequestError, StartError
from server.near_names import did_you_mean
from server.operations.runtime import OperationNotSupported, Runtime
from server.operations.served_model import ServedModel
from server.settings.entries import ErrorDialect

ROUTES: tuple[Route[Any, Any, Any], ...] = (
    *native.ROUTES,
    *tgi.ROUTES,
    *tei.ROUTES,
    *hub.ROUTES,
    *lm_eval.ROUTES,
    *openai.ROUTES,
    *anthropic.ROUTES,
    *ollama.ROUTES,
    *cohere.ROUTES,
    *libretranslate.ROUTES,
    *deepl.ROUTES,
    *whisper_cpp.ROUTES,
)
"""Routes that run an operation. If dialects share a path, the first of them answers bodies that fit no dialect."""
GET_ROUTES: tuple[GetRoute, ...] = (
    *info.GET_ROUTES,
    *lm_eval.GET_ROUTES,
    *openai.GET_ROUTES,
    *ollama.GET_ROUTES,
    *libretranslate.GET_ROUTES,
    *deepl.GET_ROUTES,
)
"""Routes that describe the server or its models."""
OWNED_ROUTES: tuple[OwnedRoute | StateRoute, ...] = (
    *MODEL_ROUTES,
    *ADAPTER_ROUTES,
    *SEQUENCE_ROUTES,
    *openai.OWNED_ROUTES,
    *libretranslate.STATE_ROUTES,
    *deepl.STATE_ROUTES,
)
"""Routes that read or change stored data: models, and answers, documents, glossaries and sets of an API key."""

CLIENTS: Mapping[str, tuple[str, Sequence[Route[Any, Any, Any] | GetRoute | OwnedRoute | StateRoute]]] = {
    "Triptych": (
        "The routes of this server: every task, every option.",
        (*native.ROUTES, *SEQUENCE_ROUTES),
    ),
    "OpenAI": (
        "Clients of the OpenAI API, and of the many servers that follow it.",
        (*openai.ROUTES, *openai.GET_ROUTES, *openai.OWNED_ROUTES),
    ),
    "Anthropic": ("Clients of the Messages API.", anthropic.ROUTES),
    "Ollama": ("Clients of Ollama.", (*ollama.ROUTES, *ollama.GET_ROUTES)),
    "Cohere and Jina": ("Clients of the Cohere API, version 2, and of Jina's reranker.", cohere.ROUTES),
    "Hugging Face": (
        "Clients of text-generation-inference, of text-embeddings-inference, and of the hub's tasks.",
        (*tgi.ROUTES, *tei.ROUTES, *hub.ROUTES, *info.GET_ROUTES),
    ),
    "LibreTranslate": (
        "Clients of LibreTranslate. It shares `/translate` with this server.",
        (*libretranslate.ROUTES, *libretranslate.GET_ROUTES, *libretranslate.STATE_ROUTES),
    ),
    "DeepL": ("Clients of the DeepL API.", (*deepl.ROUTES, *deepl.GET_ROUTES, *deepl.STATE_ROUTES)),
    "whisper.cpp": ("Clients of whisper.cpp's server.", whisper_cpp.ROUTES),
    "Evaluation": ("The harness lm-eval.", (*lm_eval.ROUTES, *lm_eval.GET_ROUTES)),
}
"""Groups of routes in the OpenAPI document, by client: name to description and routes."""


def tags() -> dict[tuple[str, str], str]:
    """Group of each (path, method) in the OpenAPI document.

    A path of several clients is in the first group that has it.
    """
    found: dict[tuple[str, str], str] = {}
    for client, (_, routes) in CLIENTS.items():
        for route in routes:
            method = (
                "post" if isinstance(route, Route) else "get" if isinstance(route, GetRoute) else route.method.lower()
            )
            found.setdefault((route.path, method), client)
    return found


def _by_path() -> Mapping[str, list[Route[Any, Any, Any]]]:
    found: dict[str, list[Route[Any, Any, Any]]] = {}
    for route in ROUTES:
        for path in (route.path, *route.aliases):
            found.setdefault(path, []).append(route)
    return found


_ROUTES_BY_PATH = _by_path()
OPERATION_PATHS = frozenset(_ROUTES_BY_PATH)
"""Paths of routes that run an operation, as templates such as `/models/{model}`."""
_CHAT_PATHS = [compile_path(path)[0] for path, routes in _ROUTES_BY_PATH.items() if routes[0].operation == "chat"]
_ALL_ROUTES: tuple[Route[Any, Any, Any] | GetRoute | StateRoute, ...] = (
    *ROUTES,
    *GET_ROUTES,
    *(route for route in OWNED_ROUTES if isinstance(route, StateRoute)),
)
KEYS_IN_FIELDS = frozenset(
    (method, path)
    for route in _ALL_ROUTES
    if route.key_field
    for path in (route.path, *getattr(route, "aliases", ()))
    for method in ((route.method, "POST") if isinstance(route, GetRoute) and route.takes_post else (route.method,))
)
"""(method, path) of routes whose requests may have the API key in a field, so that the route checks it."""
_SECRET_PATHS = [
    compile_path(route.path)[0] for route in OWNED_ROUTES if isinstance(route, StateRoute) and route.is_public
]
_SHAPES_BY_PREFIX = {
    "/api/": OLLAMA_ERRORS,
    "/v1/messages/": ANTHROPIC_ERRORS,
    "/v2/glossar": deepl.ERRORS,
    "/v2/document": deepl.ERRORS,
}
"""Error formats for paths without a route, by the beginning of the path."""
_PATHS: list[tuple[str, ErrorShape]] = [
    (realtime.PATH, OPENAI_ERRORS),
    *((route.path, route.errors) for route in OWNED_ROUTES),
    *((path, routes[0].errors) for path, routes in _ROUTES_BY_PATH.items()),
    *((path, route.errors) for route in GET_ROUTES for path in (route.path, *route.aliases)),
]
_PATTERNS: list[tuple[re.Pattern[str], str, ErrorShape]] = [
    (compile_path(path)[0], path, shape) for path, shape in _PATHS
]
"""For all routes: the path as a regular expression and as a template, and the error format."""
_KEPT_PATHS = 512
"""Number of paths whose results each function below caches. Most requests then need no regular expression."""


def add_routes(app: FastAPI) -> None:
    """Register all routes with the application."""
    app.router.route_class = RequestRoute
    app.add_api_websocket_route(realtime.PATH, realtime.live, name="realtime")
    # The first route that fits answers: `/models/load` comes before `/models/{model}`.
    for owned in OWNED_ROUTES:
        described = describe_state(owned) if isinstance(owned, StateRoute) else describe_get(owned)
        app.add_api_route(owned.path, owned.respond, methods=[owned.method], name=owned.name, **described)
    for path, routes in _ROUTES_BY_PATH.items():
        first = routes[0]
        respond = first.respond if len(routes) == 1 else SharedPath(routes).respond
        described = describe(first) if len(routes) == 1 else describe_shared(routes)
        in_schema: dict[str, Any] = described if path == first.path else {"include_in_schema": False}
        app.add_api_route(path, respond, methods=["POST"], name=first.operation_id, **in_schema)
    for get in GET_ROUTES:
        app.add_api_route(get.path, get.respond, methods=["GET"], name=get.name, **describe_get(get))
        if get.takes_post:
            app.add_api_route(get.path, get.respond, methods=["POST"], include_in_schema=False)
        for alias in get.aliases:
            app.add_api_route(alias, get.respond, methods=["GET"], name=get.name, include_in_schema=False)
    app.router.routes.insert(0, LiteralPaths(app.router.routes))


@lru_cache(_KEPT_PATHS)
def has_secret(path: str) -> bool:
    """Whether the path itself contains a secret that permits the request, so that no API key is needed."""
    return any(pattern.match(path) for pattern in _SECRET_PATHS)


@lru_cache(_KEPT_PATHS)
def is_chat(path: str) -> bool:
    """Whether the path belongs to a chat route, whose bodies contain a whole conversation."""
    return any(pattern.match(path) for pattern in _CHAT_PATHS)


@lru_cache(_KEPT_PATHS)
def route_path(path: str) -> str | None:
    """The template of the route for a request path, such as `/models/{model}`; None if there is no such route."""
    return next((written for pattern, written, _ in _PATTERNS if pattern.match(path)), None)


def error_shape(request: Request, dialect: ErrorDialect) -> ErrorShape:
    """Error format for a request: the format of the body's dialect if it is known, otherwise the format of the path.

    dialect: `native` or `tei`, for routes that the native dialect and text-embeddings-inference share. The header
        `X-Error-Format` of the request overrides it.
    """
    shape: ErrorShape = request.scope.get(ERROR_SHAPE) or _shape_of_path(request.scope["path"])
    if shape is NATIVE_ERRORS and request.headers.get(ERROR_FORMAT, dialect) == "tei":
        return tei.TEI_ERRORS
    return shape


@lru_cache(_KEPT_PATHS)
def _shape_of_path(path: str) -> ErrorShape:
    """Error format of the route with this path. Without such a route, the beginning of the path selects a format."""
    of_routes = (shape for pattern, _, shape in _PATTERNS if pattern.match(path))
    by_prefix = (shape for prefix, shape in _SHAPES_BY_PREFIX.items() if path.startswith(prefix))
    return next(chain(of_routes, by_prefix), NATIVE_ERRORS)


def with_paths(error: RequestError, path: str) -> RequestError:
    """Replace an error that names operations by InvalidRequest with the paths of routes. Others are returned unchanged.

    path: path of the request.
    """
    if not isinstance(error, OperationNotSupported):
        return error
    if error.model is None:
        return InvalidRequest(f"no loaded model answers {path}", "model")
    served = ", ".join(_paths(error.supported)) or "no route that runs a model"
    return InvalidRequest(f"the model `{error.model}` does not answer {path}; it answers {served}", "model")


def paths_of(model: ServedModel) -> list[str]:
    """The paths of routes that a model supports, one path per operation."""
    return _paths(model.operations())


def check_defaults(entries: Iterable[str]) -> None:
    """Check the setting `default_model`: raise StartError for an entry whose operation or route does not exist.

    entries: texts of the form `OPERATION=MODEL` or `ROUTE=MODEL`.
    """
    known = dict.fromkeys(name for route in ROUTES for name in (route.operation, route.path))
    for entry in entries:
        name = entry.partition("=")[0]
        if name not in known:
            raise StartError(f"default_model: {name!r} is no operation and no route{did_you_mean(name, known)}")


def default_models(runtime: Runtime) -> dict[str, str]:
    """Route path to the name of the model that answers requests without the field `model`.

    Routes without a loaded model, or whose bodies require `model`, are left out.
    """
    defaults: dict[str, str] = {}
    for route in ROUTES:
        model = route.body.model_fields.get("model")
        if model is None or model.is_required() or "{" in route.path or route.path in defaults:
            continue
        with contextlib.suppress(OperationNotSupported, NotReady, ModelNotFound):
            name = runtime.names.defaults.get(route.path)
            defaults[route.path] = runtime.candidates(name, route.operation)[0].name
    return defaults


def _paths(operations: Iterable[str]) -> list[str]:
    paths: dict[str, str] = {}
    for route in ROUTES:
        paths.setdefault(route.operation, route.path)
    return [paths[operation] for operation in operations if operation in paths]
