"""`GET /v1/models` and `GET /v1/models/{model}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from server.api.dialects.openai.common import ERRORS
from server.api.routes.error_shape import AnswerBody
from server.api.routes.route import GetRoute
from server.api.state import State
from server.operations.runtime import ServedModel


class OpenAIModel(AnswerBody):
    """A loaded model. `created`: when the server started. `max_model_len`: longest context, in tokens."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class OpenAIModelList(AnswerBody):
    object: Literal["list"]
    data: list[OpenAIModel]


def _describe(state: State, model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": int(state.start_time),
        "owned_by": "triptych",
        "max_model_len": model.max_input_tokens,
    }


def _list(state: State, parameters: Mapping[str, str]) -> dict[str, Any]:
    return {"object": "list", "data": [_describe(state, model) for model in state.runtime.ready()]}


def _one(state: State, parameters: Mapping[str, str]) -> dict[str, Any]:
    return _describe(state, state.runtime.model(parameters["model"]))


_EXAMPLE = {"id": "gpt2", "object": "model", "created": 1764000000, "owned_by": "triptych", "max_model_len": 1024}

GET_ROUTES = (
    GetRoute(
        path="/v1/models",
        name="list_models",
        description="The loaded models.",
        answer=OpenAIModelList,
        example={"object": "list", "data": [_EXAMPLE]},
        render=_list,
        errors=ERRORS,
    ),
    GetRoute(
        path="/v1/models/{model}",
        name="retrieve_model",
        description="One loaded model.",
        answer=OpenAIModel,
        example=_EXAMPLE,
        render=_one,
        errors=ERRORS,
    ),
)
