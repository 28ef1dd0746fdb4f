"""Routes that add and remove LoRA adapters while the server runs, as vLLM does. They need a model loaded on demand.

After a change, the model is loaded again with its new set of adapters when its running requests have ended.
"""

from __future__ import annotations

from typing import Annotated

from msgspec.structs import replace
from pydantic import Field, RootModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from server.api.dialects.native.model_routes import require_admin
from server.api.fields.field_kinds import Hint
from server.api.fields.fields import Body
from server.api.routes.state_route import StateRoute
from server.api.state import State
from server.errors import Forbidden, InvalidRequest, ModelNotFound, NotFound
from server.ipc.wire.descriptions import ModelSpec
from server.operations.on_demand.declared import DeclaredModel
from server.operations.on_demand.registry import ModelRegistry
from server.settings.entries import MODEL_NAME

Name = Annotated[str, Field(min_length=1, max_length=1024)]


class LoadAdapterBody(Body):
    """Body of `POST /v1/load_lora_adapter`. `lora_path`: directory on the server's machine, or hub id.

    `base_model_name`: required if several models are declared. `load_inplace` has no effect: a name that a model or
    adapter has already is always refused.
    """

    lora_name: Name
    lora_path: Name
    base_model_name: Name | None = None
    load_inplace: Hint = None


class UnloadAdapterBody(Body):
    """Body of `POST /v1/unload_lora_adapter`. `lora_int_id` has no effect: the name identifies the adapter."""

    lora_name: Name
    lora_int_id: Hint = None


async def _load(state: State, request: Request, body: LoadAdapterBody) -> Response:
    registry = require_admin(request, state)
    if not state.settings.allow_admin_load:
        raise Forbidden("adapters are added only if the server was started with --allow-admin-load")
    if not MODEL_NAME.fullmatch(body.lora_name):
        raise InvalidRequest("`lora_name` must have letters, digits, '.', '_' and '-', 96 at most", "lora_name")
    model = await _base(state, registry, body.base_model_name)
    if registry.find(body.lora_name) is not None:
        raise InvalidRequest("`lora_name` is the name of a model or adapter already", "lora_name")
    directory = await registry.resolve_adapter(model, body.lora_path)
    await registry.change(model, lambda spec: replace(spec, adapters={**spec.adapters, body.lora_name: directory}))
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def _unload(state: State, request: Request, body: UnloadAdapterBody) -> Response:
    registry = require_admin(request, state)
    model = registry.find(body.lora_name)
    if model is None or body.lora_name not in model.spec.adapters:
        raise NotFound("no adapter has this name")

    def changed(spec: ModelSpec) -> ModelSpec:
        return replace(spec, adapters={name: path for name, path in spec.adapters.items() if name != body.lora_name})

    await registry.change(model, changed)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


async def _base(state: State, registry: ModelRegistry, name: str | None) -> DeclaredModel:
    """The declared model that an adapter is for. name: the model's name, or None if only one model is declared.

    Raises InvalidRequest for a missing name, and ModelNotFound.
    """
    if name is None:
        if len(registry.models) != 1:
            raise InvalidRequest(
                "`base_model_name` is required, because several models are declared", "base_model_name"
            )
        return next(iter(registry.models.values()))
    model = await registry.find_again(state.runtime.names.resolve(name, registry.models))
    if model is None:
        raise ModelNotFound("no model is declared with this name; `GET /info` lists the models", "base_model_name")
    return model


class AdapterAnswer(RootModel[str]):
    """One line of text that reports success."""


ADAPTER_ROUTES = (
    StateRoute(
        path="/v1/load_lora_adapter",
        method="POST",
        name="load_lora_adapter",
        description="Add a LoRA adapter to a model on demand, as vLLM does. Needs an admin key and --allow-admin-load.",
        answer=AdapterAnswer,
        example="Success: LoRA adapter 'poems' added successfully.",
        body=LoadAdapterBody,
        body_example={"lora_name": "poems", "lora_path": "/srv/adapters/poems", "base_model_name": "llm"},
        render=_load,
    ),
    StateRoute(
        path="/v1/unload_lora_adapter",
        method="POST",
        name="unload_lora_adapter",
        description="Drop a LoRA adapter of a model on demand, as vLLM does. Needs an admin key.",
        answer=AdapterAnswer,
        example="Success: LoRA adapter 'poems' removed successfully.",
        body=UnloadAdapterBody,
        body_example={"lora_name": "poems"},
        render=_unload,
    ),
)
