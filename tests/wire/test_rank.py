"""/similarity and /rerank over a socket.

The fake worker embeds a text as [number of tokens, sum of ids mod 97, first id, 1], scaled to unit length. Its
reranker's logit for a pair is the number of tokens of the second text, including the end token, minus 3.
"""

from __future__ import annotations

import math

import httpx
import pytest

from server.api.dialects.native.answers import RerankAnswer, SimilarityAnswer
from tests.wire.test_encode import post, refused


def test_similarity_is_the_cosine_of_the_embeddings(client: httpx.Client) -> None:
    inputs = {"source_sentence": "ab", "sentences": ["c", "ab", "zzz"]}
    found = post(client, "/similarity", inputs=inputs)
    SimilarityAnswer.model_validate(found)
    source, *others = post(client, "/embed", inputs=["ab", "c", "ab", "zzz"], normalize=False)
    cosines = [
        sum(a * b for a, b in zip(source, other, strict=True)) / (math.hypot(*source) * math.hypot(*other))
        for other in others
    ]
    assert found == pytest.approx(cosines, abs=1e-6)
    assert found[1] == pytest.approx(1.0) and found[1] <= 1.0


def test_similarity_uses_prompts_and_truncation(client: httpx.Client) -> None:
    plain = {"source_sentence": "query: ab", "sentences": ["query: c"]}
    prompted = {"source_sentence": "ab", "sentences": ["c"]}
    assert post(client, "/similarity", inputs=prompted, prompt_name="query") == post(
        client, "/similarity", inputs=plain
    )
    refused(client, "/similarity", "prompt_name", inputs=prompted, prompt_name="other")
    long = {"source_sentence": "a" * 511 + "bc", "sentences": ["a" * 511 + "b", "a" * 510 + "bc"]}
    assert post(client, "/similarity", inputs=long)[0] == pytest.approx(1.0)
    left = post(client, "/similarity", inputs=long, truncation_direction="left")
    assert left[1] == pytest.approx(1.0) and left[0] < 1 - 1e-6
    refused(client, "/similarity", "inputs", "context_length_exceeded", inputs=long, truncate=False)


@pytest.mark.parametrize(
    "inputs",
    [
        None,
        "ab",
        ["a", "b"],
        {"source_sentence": "a"},
        {"source_sentence": "a", "sentences": []},
        {"source_sentence": "a", "sentences": "b"},
        {"source_sentence": ["a"], "sentences": ["b"]},
        {"source_sentence": "a", "sentences": ["b"], "other": 1},
        {"source_sentence": "a", "sentences": ["b"] * 1025},
        {"source_sentence": "", "sentences": ["b"]},
        {"source_sentence": "a", "sentences": ["b", ""]},
    ],
)
def test_similarity_refuses_invalid_inputs(client: httpx.Client, inputs: object) -> None:
    response = client.post("/similarity", json={"inputs": inputs})
    assert response.status_code == 422
    assert response.json()["error"]["param"].startswith("inputs")


def test_rerank_orders_texts_by_score(client: httpx.Client) -> None:
    texts = ["ab", "abcd", "", "zzzz"]
    found = post(client, "/rerank", query="q", texts=texts, raw_scores=True)
    RerankAnswer.model_validate(found)
    assert found == [
        {"index": 1, "score": 2.0},
        {"index": 3, "score": 2.0},
        {"index": 0, "score": 0.0},
        {"index": 2, "score": -2.0},
    ]
    scored = post(client, "/rerank", query="q", texts=texts, return_text=True)
    assert [(document["index"], document["text"]) for document in scored] == [
        (1, "abcd"),
        (3, "zzzz"),
        (0, "ab"),
        (2, ""),
    ]
    assert [document["score"] for document in scored] == pytest.approx([1 / (1 + math.exp(-x)) for x in (2, 2, 0, -2)])


def test_rerank_truncates_long_pairs_unless_the_request_forbids_it(client: httpx.Client) -> None:
    (truncated,) = post(client, "/rerank", query="q" * 100, texts=["a" * 600], raw_scores=True)
    assert truncated["score"] == 512 - 101 - 3
    refused(client, "/rerank", "texts", "context_length_exceeded", query="q", texts=["a" * 600], truncate=False)


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("query", {"texts": ["a"]}),
        ("query", {"query": "", "texts": ["a"]}),
        ("texts", {"query": "q", "texts": []}),
        ("texts", {"query": "q", "texts": "a"}),
        ("texts", {"query": "q", "texts": ["a"] * 1025}),
        ("raw_scores", {"query": "q", "texts": ["a"], "raw_scores": 1}),
        ("model", {"query": "q", "texts": ["a"], "model": "classifier"}),
        ("model", {"query": "q", "texts": ["a"], "model": "embedder"}),
    ],
)
def test_rerank_refuses_invalid_fields(client: httpx.Client, param: str, body: dict) -> None:
    refused(client, "/rerank", param, **body)


def test_info_lists_the_routes_of_each_model(client: httpx.Client) -> None:
    models = {model["name"]: model for model in client.get("/info").json()["models"]}
    assert models["reranker"]["tasks"] == ["classify", "rerank"]
    assert models["reranker"]["routes"] == ["/classify", "/rerank"]
    assert models["embedder"]["routes"] == ["/embed", "/embed_all", "/similarity"]
    assert post(client, "/classify", model="reranker", inputs="ab", raw_scores=True) == [
        {"label": "relevance", "score": -3.0}
    ]
