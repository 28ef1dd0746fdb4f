"""Store, list and delete sets of allowed sequences, which requests to generate and to translate name."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.body import chunks_of
from server.api.routes.error_shape import AnswerBody
from server.api.routes.state_route import StateRoute
from server.api.state import State, cache_salt
from server.errors import InvalidRequest, UnsupportedMediaType
from server.operations.generating.sequence_upload import store_set
from server.operations.runtime import OperationNotSupported
from server.operations.sequence_sets import SET_NAME, StoredSet
from server.operations.served_model import ServedModel

MAX_SET_BYTES = 64 << 20
"""Largest body of a set. A million lists of 6 token ids have 36 MB."""
MEDIA_TYPE = "application/x-ndjson"
_MEDIA_TYPES = ("", MEDIA_TYPE, "application/jsonl", "application/octet-stream")


class SequenceSetAnswer(AnswerBody):
    """A stored set. `sequences`, `tokens`: number of sequences, and of tokens in all of them.

    `memory_bytes`: memory that the set takes in the HTTP process, and again in each worker.
    """

    name: str
    model: str
    sequences: int
    tokens: int
    memory_bytes: int
    created: str


class SequenceSetsAnswer(AnswerBody):
    """The sets of the API key, in the order of their names."""

    sets: list[SequenceSetAnswer]


class NoContent(AnswerBody):
    """Empty answer with status 204: the set has been deleted."""


def _answer(found: StoredSet) -> dict[str, Any]:
    return {
        "name": found.name,
        "model": found.model,
        "sequences": found.num_sequences,
        "tokens": found.num_tokens,
        "memory_bytes": found.num_bytes,
        "created": found.created,
    }


async def _put(state: State, request: Request, body: None) -> dict[str, Any]:
    name = request.path_params["name"]
    if not re.fullmatch(SET_NAME, name):
        raise InvalidRequest("`name` must have letters, digits, '.', '_' and '-', 96 at most", "name")
    if request.query_params.keys() - {"model"}:
        raise InvalidRequest("this route takes only `model` in the query")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in _MEDIA_TYPES:
        raise UnsupportedMediaType(
            f"send one JSON value a line with the header `Content-Type: {MEDIA_TYPE}`", "content-type"
        )
    model = await _model(state, request.query_params.get("model"))
    settings = state.settings
    chunks = chunks_of(request, MAX_SET_BYTES, settings.body_timeout_seconds)
    take_memory = partial(state.door.receive, request.scope)
    found = await store_set(state.runtime, cache_salt(request), name, model, chunks, take_memory)
    return _answer(found)


async def _model(state: State, name: str | None) -> ServedModel:
    """The model that a set belongs to: the model called `name`, or the first model that generates text for None.

    For the name of an adapter, it is the model that the adapter changes.
    """
    runtime = state.runtime
    if name is None and runtime.registry is None:
        return runtime.candidates(None, "generate")[0]
    model = await runtime.served(name, state.settings.queue_timeout_seconds)
    if model.info.adapter_of:
        model = runtime.model(model.info.adapter_of)
    if "generate" not in model.info.tasks:
        raise OperationNotSupported("generate", model.name, model.operations())
    return model


def _list(state: State, request: Request, body: None) -> dict[str, Any]:
    return {"sets": [_answer(found) for found in state.runtime.sequence_sets.all(cache_salt(request))]}


def _get(state: State, request: Request, body: None) -> dict[str, Any]:
    return _answer(state.runtime.sequence_sets.get(cache_salt(request), request.path_params["name"]))


def _delete(state: State, request: Request, body: None) -> Response:
    state.runtime.sequence_sets.delete(cache_salt(request), request.path_params["name"])
    return Response(status_code=204)


_SET = {"name": "titles", "model": "llm", "sequences": 1000000, "tokens": 6000000, "memory_bytes": 44954766}
_SET |= {"created": "2026-11-29T12:00:00+00:00"}
_ONE = "/allowed_sequences/{name}"
SEQUENCE_ROUTES = (
    StateRoute(
        path=_ONE,
        method="PUT",
        name="store_allowed_sequences",
        description="Store a set of allowed sequences, in place of one with its name. The body has one JSON value a "
        "line: a string, or a list of token ids. The query may name the `model`.",
        answer=SequenceSetAnswer,
        example=_SET,
        status=201,
        parameters={"model": "model whose token ids the sequences are; default: the first one that generates"},
        lines='"a title"\n[17, 4, 99]\n',
        render=_put,
    ),
    StateRoute(
        path="/allowed_sequences",
        method="GET",
        name="list_allowed_sequences",
        description="The stored sets of allowed sequences of the API key.",
        answer=SequenceSetsAnswer,
        example={"sets": [_SET]},
        render=_list,
    ),
    StateRoute(
        path=_ONE,
        method="GET",
        name="get_allowed_sequences",
        description="What is known of a stored set of allowed sequences.",
        answer=SequenceSetAnswer,
        example=_SET,
        render=_get,
    ),
    StateRoute(
        path=_ONE,
        method="DELETE",
        name="delete_allowed_sequences",
        description="Delete a stored set of allowed sequences. Requests in progress keep it.",
        answer=NoContent,
        example={},
        status=204,
        render=_delete,
    ),
)
