"""`POST /v2/embed`: vectors as numbers, base64 or bits."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from server.api.dialects.cohere.common import ERRORS, CohereMeta, meta
from server.api.fields.chat_fields import TEXT_OR_PARTS, ChatObject, text_parts
from server.api.fields.field_kinds import Hint, only
from server.api.fields.fields import MAX_ITEMS, TimedBody
from server.api.routes.error_shape import AnswerBody
from server.api.routes.route import JsonRoute
from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.cost import Cost
from server.operations.encode import Numbers
from server.operations.ranking.embed import EmbedResult, EmbedSpec, embed
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.tokens.truncation import TruncationSide

InputType = Literal["search_document", "search_query", "classification", "clustering"]
_PROMPT_NAMES: Mapping[str, tuple[str, ...]] = {
    "search_query": ("search_query", "query"),
    "search_document": ("search_document", "document", "passage"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}
"""Input type to the names under which checkpoints store its prompt. The first name that a checkpoint has is used."""
_SIDES: Mapping[str, TruncationSide | None] = {"NONE": None, "START": "left", "END": "right"}


class CohereEmbedInput(ChatObject):
    content: Annotated[str, text_parts("text"), TEXT_OR_PARTS]


@dataclass(frozen=True)
class CohereEmbedSpec(EmbedSpec):
    """Request for the vectors of texts. Each text gets the checkpoint's prompt for `input_type`, if it has one."""

    input_type: InputType = "search_document"

    def with_prompt(self, model: ServedModel) -> EmbedSpec:
        names = [name for name in _PROMPT_NAMES[self.input_type] if name in model.text.prompts.by_name]
        return EmbedSpec(
            self.inputs,
            model.name,
            truncation=self.truncation,
            dimensions=self.dimensions,
            prompt_name=names[0] if names else None,
            max_tokens=self.max_tokens,
        )

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission."""
        return self.with_prompt(model).cost(model)


class CohereEmbedBody(TimedBody):
    """Body of `POST /v2/embed`. It needs either `texts` or `inputs`. `priority` has no effect."""

    input_type: InputType
    texts: Annotated[list[str] | None, Field(min_length=1, max_length=MAX_ITEMS)] = None
    inputs: Annotated[list[CohereEmbedInput] | None, Field(min_length=1, max_length=MAX_ITEMS)] = None
    images: Annotated[list[str] | None, only([])] = None
    max_tokens: Annotated[int | None, Field(ge=1, description="most tokens of a text; `truncate` applies beyond")] = (
        None
    )
    embedding_types: Annotated[
        list[Literal["float", "base64", "binary", "ubinary"]] | None,
        Field(min_length=1, max_length=4, description="int8 and uint8 need a calibration that checkpoints do not have"),
    ] = None
    truncate: Literal["NONE", "START", "END"] | None = None
    output_dimension: Annotated[int | None, Field(ge=1)] = None
    priority: Hint = None

    def given_texts(self) -> list[str]:
        """The texts of `texts` or `inputs`. Raises InvalidRequest for a body with both fields, or with neither."""
        if (self.texts is None) == (self.inputs is None):
            raise InvalidRequest("send either `texts` or `inputs`, not both", "texts")
        return self.texts if self.texts is not None else [document.content for document in self.inputs or ()]

    def spec(self) -> CohereEmbedSpec:
        return CohereEmbedSpec(
            self.given_texts(),
            self.model,
            truncation=_SIDES[self.truncate or "END"],
            dimensions=self.output_dimension,
            max_tokens=self.max_tokens,
            input_type=self.input_type,
        )


class CohereEmbeddings(AnswerBody):
    """The vectors, once for each requested embedding type. `base64`: little-endian float32.

    `binary`, `ubinary`: signs of the components, 8 in each integer.
    """

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    float_: list[list[float]] | None = Field(default=None, alias="float")
    base64: list[str] | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None


class CohereEmbedAnswer(AnswerBody):
    id: str
    response_type: Literal["embeddings_by_type"]
    embeddings: CohereEmbeddings
    texts: list[str]
    meta: CohereMeta


def _signs(vectors: Numbers) -> Any:
    """Pack the signs of vectors into bytes: 1 for components above 0. The first component is the highest bit.

    vectors: [texts, dimensions], float32. Returns [texts, ceil(dimensions / 8)], uint8.
    """
    return np.packbits(vectors > 0, axis=1)


_ENCODINGS: Mapping[str, Callable[[Numbers], Any]] = {
    "float": lambda vectors: vectors,
    "base64": lambda vectors: [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors],
    "ubinary": _signs,
    "binary": lambda vectors: (_signs(vectors).astype(np.int16) - 128).astype(np.int8),
}


async def _embed(runtime: Runtime, call: Call, spec: CohereEmbedSpec) -> EmbedResult:
    model = runtime.candidates(spec.model, "embed")[0]
    return await embed(runtime, call, spec.with_prompt(model))


def _render(body: CohereEmbedBody, result: EmbedResult) -> dict[str, Any]:
    kinds = body.embedding_types or ["float"]
    return {
        "id": str(uuid.uuid4()),
        "response_type": "embeddings_by_type",
        "embeddings": {kind: _ENCODINGS[kind](result.vectors) for kind in kinds},
        "texts": body.given_texts(),
        "meta": meta("2", input_tokens=result.prompt_tokens),
    }


ROUTE = JsonRoute(
    path="/v2/embed",
    operation="embed",
    name="cohere_embed",
    description="One vector for each text (Cohere), with the checkpoint's prompt for `input_type` if it has one.",
    body=CohereEmbedBody,
    answer=CohereEmbedAnswer,
    example=(
        {"model": "sentence-encoder", "texts": ["a text"], "input_type": "search_query", "embedding_types": ["float"]},
        {
            "id": "54910170-852f-4322-9767-63d36e55c3bf",
            "response_type": "embeddings_by_type",
            "embeddings": {"float": [[0.6, 0.8]]},
            "texts": ["a text"],
            "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 4}},
        },
    ),
    parse=CohereEmbedBody.spec,
    run=_embed,
    render=_render,
    errors=replace(
        ERRORS,
        fields={"inputs": "texts", "dimensions": "output_dimension", "truncation_direction": "truncate"},
    ),
)
