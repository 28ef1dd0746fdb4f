"""`POST /v2/rerank` (Cohere), and `POST /v1/rerank` and `/rerank` as Cohere's and Jina's clients send it."""

from __future__ import annotations

import math
import uuid
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from server.api.dialects.cohere.common import ERRORS, CohereMeta, meta
from server.api.fields.chat_fields import ChatObject
from server.api.fields.field_kinds import Hint, Unsupported, only, wish
from server.api.fields.fields import MAX_ITEMS, Instruction, TimedBody
from server.api.routes.error_shape import AnswerBody
from server.api.routes.route import JsonRoute
from server.operations.ranking.rerank import RankedText, RerankResult, RerankSpec, rerank

DOCUMENTS_PER_UNIT = 100
"""Number of documents that Cohere counts as one search unit."""


class CohereRerankBody(TimedBody):
    """Body of `POST /v2/rerank`. `priority` has no effect."""

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS)]
    top_n: Annotated[int | None, Field(ge=1)] = None
    max_tokens_per_doc: Annotated[int | None, Field(ge=1)] = None
    relevant_spans: Unsupported = None
    priority: Hint = None

    def spec(self) -> RerankSpec:
        return RerankSpec(self.query, self.documents, self.model, max_text_tokens=self.max_tokens_per_doc)


class RerankDocument(ChatObject):
    text: str


class JinaRerankBody(TimedBody):
    """Body of `POST /v1/rerank`. `return_documents`: the answer also has the text of each document."""

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | RerankDocument], Field(min_length=1, max_length=MAX_ITEMS)]
    top_n: Annotated[int | None, Field(ge=1)] = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int | None, Field(ge=1)] = None
    instruction: Instruction | None = None
    rank_fields: Annotated[Any, only(["text"])] = None
    max_chunks_per_doc: Annotated[Any, wish()] = None
    priority: Hint = None
    request_id: Hint = None
    user: Hint = None

    def spec(self) -> RerankSpec:
        texts = [document if isinstance(document, str) else document.text for document in self.documents]
        tokens = self.max_tokens_per_doc
        return RerankSpec(self.query, texts, self.model, max_text_tokens=tokens, instruction=self.instruction)


class CohereRanked(AnswerBody):
    """A document with its score. `index`: position of the document in the request. `relevance_score`: from 0 to 1."""

    index: int
    relevance_score: float


class JinaRanked(CohereRanked):
    document: RerankDocument | None = None


class CohereRerankAnswer(AnswerBody):
    id: str
    results: list[CohereRanked]
    meta: CohereMeta


class RerankUsage(AnswerBody):
    prompt_tokens: int
    total_tokens: int


class JinaRerankAnswer(AnswerBody):
    """Answer for clients of both services: Cohere's read `id` and `meta`, Jina's read `model` and `usage`."""

    id: str
    model: str
    results: list[JinaRanked]
    usage: RerankUsage
    meta: CohereMeta


def _ranked(ranked: RankedText) -> dict[str, Any]:
    return {"index": ranked.index, "relevance_score": ranked.score}


def _cohere(body: CohereRerankBody, result: RerankResult) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "results": [_ranked(document) for document in result.ranked[: body.top_n]],
        "meta": _meta("2", result),
    }


def _jina(body: JinaRerankBody, result: RerankResult) -> dict[str, Any]:
    results = [
        _ranked(document) | ({"document": {"text": document.text}} if body.return_documents else {})
        for document in result.ranked[: body.top_n]
    ]
    return {
        "id": str(uuid.uuid4()),
        "model": result.model,
        "results": results,
        "usage": {"prompt_tokens": result.prompt_tokens, "total_tokens": result.prompt_tokens},
        "meta": _meta("1", result),
    }


def _meta(version: str, result: RerankResult) -> dict[str, Any]:
    return meta(version, search_units=math.ceil(len(result.ranked) / DOCUMENTS_PER_UNIT))


_BODY = {"model": "cross-encoder", "query": "What is a fox?", "documents": ["A kind of dog.", "A small wild animal."]}
_RESULTS = [{"index": 1, "relevance_score": 0.92}, {"index": 0, "relevance_score": 0.31}]
_ID = "07734bd2-2473-4f07-94e1-0d9f0e6843cf"
_ERRORS = replace(ERRORS, fields={"texts": "documents"})

ROUTES = (
    JsonRoute(
        path="/v2/rerank",
        operation="rerank",
        name="cohere_rerank",
        description="Documents by descending relevance to a query (Cohere).",
        body=CohereRerankBody,
        answer=CohereRerankAnswer,
        example=(
            _BODY,
            {
                "id": _ID,
                "results": _RESULTS,
                "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
            },
        ),
        parse=CohereRerankBody.spec,
        run=rerank,
        render=_cohere,
        errors=_ERRORS,
    ),
    JsonRoute(
        path="/v1/rerank",
        aliases=("/rerank",),
        operation="rerank",
        name="jina_rerank",
        field="documents",
        description="Documents by descending relevance to a query (Jina, and version 1 of Cohere).",
        body=JinaRerankBody,
        answer=JinaRerankAnswer,
        example=(
            _BODY,
            {
                "id": _ID,
                "model": "cross-encoder",
                "results": _RESULTS,
                "usage": {"prompt_tokens": 23, "total_tokens": 23},
                "meta": {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}},
            },
        ),
        parse=JinaRerankBody.spec,
        run=rerank,
        render=_jina,
        errors=_ERRORS,
    ),
)
