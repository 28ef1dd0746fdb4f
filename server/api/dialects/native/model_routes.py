"""Routes for operators that load and unload models: our own, and those of llama.cpp and LM Studio.

A model must be declared before it can be loaded. With `--allow-admin-load`, a load request may declare a new model by
its path or hub id.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request

from server.api.entry.scope import KEY_LIMITS
from server.api.fields.fields import Body
from server.api.routes.error_shape import AnswerBody
from server.api.routes.state_route import StateRoute
from server.api.state import State
from server.errors import Forbidden, InvalidRequest, ModelNotFound
from server.operations.on_demand.declared import DeclaredModel
from server.operations.on_demand.registry import ModelRegistry
from server.settings.settings import is_loopback

Name = Annotated[str, Field(min_length=1, max_length=256)]


class LoadModelBody(Body):
    """Body of `POST /models/{model}/load`.

    `source`: path or hub id, to declare a new model; needs `--allow-admin-load`.
    """

    source: Name | None = None


class NamedModelBody(Body):
    """Body of the routes of llama.cpp and LM Studio.

    `instance_id`: LM Studio's name for the field `model` in requests to unload.
    """

    model: Name | None = None
    instance_id: Name | None = None


class ModelStateAnswer(AnswerBody):
    """State of a model after the request. `success`: always true, a field of llama.cpp.

    `state`: declared, loading, loaded or unloading.
    """

    success: bool
    model: str
    state: str
    memory_bytes: int


def require_admin(request: Request, state: State) -> ModelRegistry:
    """Check that a request may load and unload models, and return the model registry.

    A server with API keys needs a key with admin rights. One without keys must listen on a loopback address.
    Raises Forbidden, or InvalidRequest if all models are loaded at the start.
    """
    settings, key = state.settings, request.scope.get(KEY_LIMITS)
    if state.keys:
        if key is None or not key.is_admin:
            raise Forbidden("the API key may not load and unload models; its table in the key file needs admin = true")
    elif settings.insecure_no_auth or not is_loopback(settings.host):
        raise Forbidden("models are loaded and unloaded by admin keys only, and this server has no keys")
    if state.runtime.registry is None:
        raise InvalidRequest("all models are loaded at the start; models on demand need --memory or --models-dir")
    return state.runtime.registry


async def _declared(state: State, registry: ModelRegistry, name: str) -> DeclaredModel:
    model = await registry.find_again(state.runtime.names.resolve(name, registry.models))
    if model is None:
        raise ModelNotFound("no model is declared with this name; `GET /info` lists the models", "model")
    return model


def _answer(model: DeclaredModel) -> dict[str, Any]:
    return {"success": True, "model": model.name, "state": model.state, "memory_bytes": model.size_bytes}


async def _load(state: State, request: Request, body: LoadModelBody) -> dict[str, Any]:
    registry = require_admin(request, state)
    name = request.path_params["model"]
    if body.source is not None:
        if not state.settings.allow_admin_load:
            raise Forbidden("`source` declares a new model; the server must be started with --allow-admin-load")
        await registry.declare_source(name, body.source)
    model = await _declared(state, registry, name)
    await registry.load_now(model)
    return _answer(model)


async def _unload(state: State, request: Request, body: object) -> dict[str, Any]:
    registry = require_admin(request, state)
    model = await _declared(state, registry, request.path_params["model"])
    await registry.unload(model)
    return _answer(model)


async def _load_named(state: State, request: Request, body: NamedModelBody) -> dict[str, Any]:
    registry = require_admin(request, state)
    model = await _declared(state, registry, _name(body))
    await registry.load_now(model)
    return _answer(model)


async def _unload_named(state: State, request: Request, body: NamedModelBody) -> dict[str, Any]:
    registry = require_admin(request, state)
    model = await _declared(state, registry, _name(body))
    await registry.unload(model)
    return _answer(model)


def _name(body: NamedModelBody) -> str:
    name = body.model or body.instance_id
    if name is None:
        raise InvalidRequest("the field `model` is required", "model")
    return name


_ANSWER = {"success": True, "model": "llm", "state": "loaded", "memory_bytes": 1073741824}
_UNLOADED = {"success": True, "model": "llm", "state": "declared", "memory_bytes": 0}
MODEL_ROUTES = (
    StateRoute(
        path="/models/load",
        method="POST",
        name="load_named_model",
        description="Load a declared model, as llama.cpp does. Needs an admin key.",
        answer=ModelStateAnswer,
        example=_ANSWER,
        body=NamedModelBody,
        body_example={"model": "llm"},
        render=_load_named,
    ),
    StateRoute(
        path="/models/unload",
        method="POST",
        name="unload_named_model",
        description="Unload a model, as llama.cpp does. Needs an admin key.",
        answer=ModelStateAnswer,
        example=_UNLOADED,
        body=NamedModelBody,
        body_example={"model": "llm"},
        render=_unload_named,
    ),
    StateRoute(
        path="/api/v1/models/load",
        method="POST",
        name="load_model_lm_studio",
        description="Load a declared model, as LM Studio does. Needs an admin key.",
        answer=ModelStateAnswer,
        example=_ANSWER,
        body=NamedModelBody,
        body_example={"model": "llm"},
        render=_load_named,
    ),
    StateRoute(
        path="/api/v1/models/unload",
        method="POST",
        name="unload_model_lm_studio",
        description="Unload a model, as LM Studio does. Needs an admin key.",
        answer=ModelStateAnswer,
        example=_UNLOADED,
        body=NamedModelBody,
        body_example={"instance_id": "llm"},
        render=_unload_named,
    ),
    StateRoute(
        path="/models/{model}/load",
        method="POST",
        name="load_model",
        description="Load a declared model, and wait until it is loaded. Needs an admin key.",
        answer=ModelStateAnswer,
        example=_ANSWER,
        body=LoadModelBody,
        body_example={},
        render=_load,
    ),
    StateRoute(
        path="/models/{model}/unload",
        method="POST",
        name="unload_model",
        description="Unload a model when its running requests have ended. Needs an admin key.",
        answer=ModelStateAnswer,
        example=_UNLOADED,
        render=_unload,
    ),
)
