"""All routes that run an operation, over all dialects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI

from server.api.dialects import openai_audio
from server.api.dialects.native import routes as native
from server.api.documents import describe
from server.api.route import ErrorShape, Route
from server.errors import InvalidRequest, RequestError
from server.operations.runtime import OperationNotSupported, ServedModel

ROUTES: tuple[Route[Any, Any, Any], ...] = (*native.ROUTES, *openai_audio.ROUTES)

_ERROR_SHAPES = {path: route.errors for route in ROUTES for path in (route.path, *route.aliases)}


def add_routes(app: FastAPI) -> None:
    """Register all routes with the application."""
    for route in ROUTES:
        app.add_api_route(route.path, route.respond, methods=["POST"], name=route.name, **describe(route))
        for alias in route.aliases:
            app.add_api_route(alias, route.respond, methods=["POST"], name=route.name, include_in_schema=False)


def error_shape(path: str) -> ErrorShape:
    """How errors are reported on this path."""
    return _ERROR_SHAPES.get(path, ErrorShape())


def with_paths(error: RequestError, path: str) -> RequestError:
    """The error with routes in place of operation names, for a request to `path`."""
    if not isinstance(error, OperationNotSupported):
        return error
    if error.model is None:
        return InvalidRequest(f"no loaded model answers {path}", "model")
    served = ", ".join(_paths(error.supported)) or "no route that runs a model"
    return InvalidRequest(f"the model `{error.model}` does not answer {path}; it answers {served}", "model")


def paths_of(model: ServedModel) -> list[str]:
    """The routes that a model answers, one per operation."""
    return _paths(model.operations())


def _paths(operations: Iterable[str]) -> list[str]:
    paths: dict[str, str] = {}
    for route in ROUTES:
        paths.setdefault(route.operation, route.path)
    return [paths[operation] for operation in operations if operation in paths]
