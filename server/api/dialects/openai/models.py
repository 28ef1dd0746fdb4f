"""List the models in OpenAI's format: `GET /v1/models` and `GET /v1/models/{model}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from server.api.dialects.openai.common import ERRORS
from server.api.routes.error_shape import AnswerBody
from server.api.routes.get_route import GetRoute
from server.api.state import State
from server.operations.on_demand.declared import DeclaredModel
from server.operations.served_model import ServedModel


class OpenAIModelStatus(AnswerBody):
    """Whether a model is loaded. `value`: declared (not loaded), loading, loaded, unloading or failed.

    `reason`: why the last load failed.
    """

    value: str
    reason: str | None = None


class OpenAIModel(AnswerBody):
    """A model. `created`: start time of the server. `max_model_len`: longest input in tokens, only of a loaded model.

    `status`: state of a model that is loaded on demand; absent if all models are loaded at the start.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None = None
    status: OpenAIModelStatus | None = None


class OpenAIModelList(AnswerBody):
    object: Literal["list"]
    data: list[OpenAIModel]


def _describe(state: State, name: str, model: ServedModel | None, declared: DeclaredModel | None) -> dict[str, Any]:
    """Describe a model in the fields of `OpenAIModel`.

    model: the loaded model; None if it is not loaded.
    declared: its entry in the registry; None if all models are loaded at the start.
    """
    found: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": int(state.start_time),
        "owned_by": "triptych",
    }
    if model is not None:
        found["max_model_len"] = model.max_input_tokens
    if declared is not None:
        found["status"] = {"value": declared.state}
        if declared.reason:
            found["status"]["reason"] = declared.reason
    return found


def _list(state: State, parameters: Mapping[str, str]) -> dict[str, Any]:
    registry = state.runtime.registry
    loaded = {model.name: model for model in state.runtime.ready()}
    if registry is None:
        data = [_describe(state, name, model, None) for name, model in loaded.items()]
    else:
        declared = [(name, model) for model in registry.models.values() for name in model.names]
        data = [_describe(state, name, loaded.get(name), model) for name, model in declared]
    return {"object": "list", "data": data}


def _one(state: State, parameters: Mapping[str, str]) -> dict[str, Any]:
    runtime = state.runtime
    if runtime.registry is not None:
        name = runtime.names.resolve(parameters["model"], runtime.registry.models)
        declared = runtime.registry.find(name)
        if declared is not None:
            return _describe(state, name, runtime.find(name), declared)
    model = runtime.model(parameters["model"])
    return _describe(state, model.name, model, None)


_EXAMPLE = {"id": "gpt2", "object": "model", "created": 1764000000, "owned_by": "triptych", "max_model_len": 1024}

GET_ROUTES = (
    GetRoute(
        path="/v1/models",
        name="list_models",
        description="The models: loaded ones, and those that are loaded when a request asks for them.",
        answer=OpenAIModelList,
        example={"object": "list", "data": [_EXAMPLE]},
        render=_list,
        errors=ERRORS,
    ),
    GetRoute(
        path="/v1/models/{model}",
        name="retrieve_model",
        description="One model.",
        answer=OpenAIModel,
        example=_EXAMPLE,
        render=_one,
        errors=ERRORS,
    ),
)
