"""`POST /v1/embeddings`: one vector per input, as numbers or as base64."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from server.api.dialects.openai.common import STATUSES
from server.api.fields.field_kinds import Hint, only
from server.api.fields.fields import Prompt, TimedBody
from server.api.routes.error_shape import AnswerBody, ErrorShape
from server.api.routes.route import JsonRoute
from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.ranking.embed import EmbedResult, EmbedSpec, embed
from server.operations.runtime import Runtime


@dataclass(frozen=True)
class OpenAIEmbedSpec(EmbedSpec):
    """Request for vectors. If `truncation` is None, the server's setting `--auto-truncate` decides about long texts."""


async def _embed(runtime: Runtime, call: Call, spec: OpenAIEmbedSpec) -> EmbedResult:
    if spec.truncation is None and runtime.auto_truncate:
        spec = replace(spec, truncation="right")
    return await embed(runtime, call, spec)


class EmbeddingsBody(TimedBody):
    """Body of `POST /v1/embeddings`.

    An input that is too long for the model is refused, unless `truncate_prompt_tokens` or the server's setting
    `--auto-truncate` cuts off its end. The fields from `priority` on are from the APIs of vLLM and Jina.
    """

    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int | None, Field(ge=1)] = None
    truncate_prompt_tokens: Annotated[int | None, Field(ge=-1, le=1 << 20)] = None
    user: Hint = None
    priority: Hint = None
    request_id: Hint = None
    add_special_tokens: Annotated[Any, only(True)] = None
    embedding_type: Annotated[Any, only("float")] = None
    normalized: Annotated[Any, only(True)] = None
    late_chunking: Annotated[Any, only(False)] = None

    def spec(self) -> OpenAIEmbedSpec:
        """Convert the body to an `OpenAIEmbedSpec`. Raises InvalidRequest for `truncate_prompt_tokens` 0."""
        kept = self.truncate_prompt_tokens
        if kept == 0:
            raise InvalidRequest("`truncate_prompt_tokens` must be -1 or at least 1", "truncate_prompt_tokens")
        is_one = isinstance(self.input, str) or isinstance(self.input[0], int)
        inputs = [self.input] if is_one else self.input
        return OpenAIEmbedSpec(
            inputs,
            self.model,
            truncation=None if kept is None else "right",
            dimensions=self.dimensions,
            max_tokens=kept if kept != -1 else None,
        )


class OpenAIEmbedding(AnswerBody):
    """One vector. `embedding`: a list of numbers, or little-endian float32 values in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(AnswerBody):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(AnswerBody):
    object: Literal["list"]
    data: list[OpenAIEmbedding]
    model: str
    usage: EmbeddingsUsage


def _render(body: EmbeddingsBody, result: EmbedResult) -> dict[str, Any]:
    rows: list[Any] = list(result.vectors)
    if body.encoding_format == "base64":
        rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
        "model": result.model,
        "usage": {"prompt_tokens": result.prompt_tokens, "total_tokens": result.prompt_tokens},
    }


ROUTE = JsonRoute(
    path="/v1/embeddings",
    aliases=("/models/{model}/v1/embeddings",),
    operation="embed",
    name="embeddings",
    description="One vector for each input: a text, token ids, or a list of either.",
    body=EmbeddingsBody,
    answer=EmbeddingsAnswer,
    example=(
        {"model": "e5-small", "input": ["a first text", "a second one"]},
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": 0, "embedding": [0.6, 0.8]},
                {"object": "embedding", "index": 1, "embedding": [0.8, 0.6]},
            ],
            "model": "e5-small",
            "usage": {"prompt_tokens": 10, "total_tokens": 10},
        },
    ),
    parse=EmbeddingsBody.spec,
    run=_embed,
    render=_render,
    errors=ErrorShape(statuses=STATUSES, fields={"inputs": "input"}),
)
