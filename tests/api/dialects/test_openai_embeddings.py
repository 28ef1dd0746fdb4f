"""`/v1/embeddings`: inputs that are longer than the model's context."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from server.api.dialects.openai import embeddings
from server.api.dialects.openai.embeddings import EmbeddingsBody
from server.errors import InvalidRequest


@pytest.mark.parametrize(
    ("auto_truncate", "field", "side", "max_tokens"),
    [
        (False, {}, None, None),
        (True, {}, "right", None),
        (False, {"truncate_prompt_tokens": -1}, "right", None),
        (True, {"truncate_prompt_tokens": 7}, "right", 7),
    ],
    ids=["refused", "setting", "limit of the model", "limit of the request"],
)
def test_truncation(
    monkeypatch: pytest.MonkeyPatch, auto_truncate: bool, field: dict, side: str | None, max_tokens: int | None
):
    async def embed(runtime: Any, call: Any, spec: Any) -> Any:
        return spec

    monkeypatch.setattr(embeddings, "embed", embed)
    body = EmbeddingsBody.model_validate({"input": "a text", **field})
    runtime: Any = SimpleNamespace(auto_truncate=auto_truncate)
    call: Any = None
    spec = asyncio.run(embeddings.ROUTE.run(runtime, call, body.spec()))
    assert (spec.truncation, spec.max_tokens) == (side, max_tokens)


def test_no_tokens_are_refused():
    with pytest.raises(InvalidRequest, match="truncate_prompt_tokens"):
        EmbeddingsBody.model_validate({"input": "a text", "truncate_prompt_tokens": 0}).spec()
