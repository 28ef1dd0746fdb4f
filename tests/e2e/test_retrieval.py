"""Retrieval models return the same vectors, weights and scores as sentence-transformers and the published formulas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers

from server.text.chats.answer_prompts import PUBLISHED
from tests.e2e import requests_page
from tests.e2e import retrieval_checkpoints as checkpoints
from tests.e2e.conftest import RunningServer, serving
from tests.text.checkpoints import CORPUS

TEXTS = [CORPUS[0], "a!", " ".join(CORPUS[3:12]), "NOBODY sees THE café. Is it?", CORPUS[40]]
QUERY = "Who sees the café?"
LATE = ("colbert", "pylate", "multi-vector")
WRITERS = {
    "colbert": checkpoints.write_colbert,
    "pylate": checkpoints.write_pylate,
    "multi-vector": checkpoints.write_multi_vector,
    "bge-m3": checkpoints.write_bge_m3,
    "splade": checkpoints.write_splade,
    "qwen": checkpoints.write_language_model,
    "answers": checkpoints.write_answering_cross_encoder,
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write(tmp_path_factory.mktemp(name)) for name, write in WRITERS.items()}


@pytest.fixture(scope="module")
def server(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    named = [f"{name}={path}" for name, path in paths.items()]
    flags = ("--dtype", "float32", "--device", "cpu", "--threads", "1", "--rerank-prompts", "qwen=qwen3-reranker")
    with serving(tmp_path_factory.mktemp("log") / "log", *named, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def late(paths: dict[str, Path]) -> dict[str, Any]:
    return {name: sentence_transformers.MultiVectorEncoder(str(paths[name]), device="cpu") for name in LATE}


def post(server: RunningServer, path: str, **body: object) -> Any:
    response = server.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(server: RunningServer, path: str, **body: object) -> dict[str, str]:
    response = server.post(path, json=body)
    assert response.status_code == 422, response.text
    error: dict[str, str] = response.json()["error"]
    return error


def by_index(ranked: list[dict[str, Any]]) -> np.ndarray:
    scores = [document["score"] for document in ranked]
    assert scores == sorted(scores, reverse=True)
    return np.array([document["score"] for document in sorted(ranked, key=lambda document: document["index"])])


@pytest.mark.parametrize("name", LATE)
def test_token_vectors(server: RunningServer, late: dict[str, Any], name: str) -> None:
    for side, encode in (("query", late[name].encode_query), ("document", late[name].encode_document)):
        expected = encode(TEXTS, convert_to_numpy=True)
        found = post(server, "/embed", model=name, inputs=TEXTS, late_interaction=side)
        for one, other in zip(found, expected, strict=True):
            assert np.array(one).shape == other.shape
            np.testing.assert_allclose(one, other, atol=2e-5)
        alone = [post(server, "/embed", model=name, inputs=text, late_interaction=side)[0] for text in TEXTS]
        assert alone == found, "batch-mates matter"


@pytest.mark.parametrize("name", LATE)
def test_max_sim(server: RunningServer, late: dict[str, Any], name: str) -> None:
    oracle = late[name]
    expected = oracle.similarity(oracle.encode_query([QUERY]), oracle.encode_document(TEXTS))[0].numpy()
    raw = by_index(post(server, "/rerank", model=name, query=QUERY, texts=TEXTS, raw_scores=True))
    np.testing.assert_allclose(raw, expected, rtol=1e-5, atol=1e-4)
    vectors = len(oracle.encode_query([QUERY])[0])
    means = expected if name == "multi-vector" else expected / vectors
    scores = by_index(post(server, "/rerank", model=name, query=QUERY, texts=TEXTS))
    np.testing.assert_allclose(scores, (1 + means) / 2, atol=1e-5)


def test_long_texts_are_cut_at_the_lengths_of_the_checkpoint(server: RunningServer) -> None:
    body = {"model": "colbert", "inputs": TEXTS, "late_interaction": "document"}
    response = server.post("/embed", json=body)
    assert response.headers["X-Truncated-Inputs"] == "2"
    assert refused(server, "/embed", **body, truncate=False)["param"] == "inputs"
    assert max(map(len, response.json())) <= 24


def test_a_model_of_token_vectors_has_no_vector_of_a_text(server: RunningServer) -> None:
    message = refused(server, "/embed", model="colbert", inputs="a")["message"]
    assert "it answers /embed, /rerank" in message
    error = refused(server, "/embed", model="splade", inputs="a", late_interaction="query")
    assert "/embed_sparse" in error["message"]


def test_bge_m3(server: RunningServer, paths: dict[str, Path]) -> None:
    """All vectors of BGE-M3 equal those of `EncoderOnlyEmbedderM3Model` in FlagEmbedding 1.4.2.

    The expected vectors are computed here with its formulas, in float64, from hidden states of transformers.
    """
    path = paths["bge-m3"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(path).eval()
    heads = {name: torch.load(path / f"{name}_linear.pt", weights_only=True) for name in ("colbert", "sparse")}
    unused = {tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    vectors, lexical, dense = [], [], []
    for text in [*TEXTS, QUERY]:
        encoded = tokenizer(text, truncation=True, max_length=48, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**encoded).last_hidden_state[0].double()
        dense.append(torch.nn.functional.normalize(hidden[0], dim=-1).numpy())
        projected = hidden[1:] @ heads["colbert"]["weight"].double().T + heads["colbert"]["bias"].double()
        vectors.append(torch.nn.functional.normalize(projected, dim=-1).numpy())
        weights = torch.relu(hidden @ heads["sparse"]["weight"].double().T + heads["sparse"]["bias"].double())[:, 0]
        largest: dict[int, float] = {}
        for token, weight in zip(encoded["input_ids"][0].tolist(), weights.tolist(), strict=True):
            if token not in unused and weight > largest.get(token, 0.0):
                largest[token] = weight
        lexical.append(largest)
    np.testing.assert_allclose(post(server, "/embed", model="bge-m3", inputs=TEXTS), dense[:-1], atol=1e-5)
    for side in ("query", "document"):
        found = post(server, "/embed", model="bge-m3", inputs=TEXTS, late_interaction=side)
        for one, other in zip(found, vectors, strict=False):
            np.testing.assert_allclose(one, other, atol=2e-5)
    for one, other in zip(post(server, "/embed_sparse", model="bge-m3", inputs=TEXTS), lexical, strict=False):
        assert [entry["index"] for entry in one] == sorted(other)
        np.testing.assert_allclose([entry["value"] for entry in one], [other[key] for key in sorted(other)], atol=1e-4)
    expected = [(vectors[-1] @ text.T).max(1).mean() for text in vectors[:-1]]
    raw = by_index(post(server, "/rerank", model="bge-m3", query=QUERY, texts=TEXTS, raw_scores=True))
    np.testing.assert_allclose(raw, expected, atol=1e-5)


def test_splade_pooling_of_the_checkpoint(server: RunningServer, paths: dict[str, Path]) -> None:
    oracle = sentence_transformers.SparseEncoder(str(paths["splade"]), device="cpu")
    expected = oracle.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    for vector, row in zip(post(server, "/embed_sparse", model="splade", inputs=TEXTS), expected, strict=True):
        assert [entry["index"] for entry in vector] == np.flatnonzero(row).tolist()
        np.testing.assert_allclose([entry["value"] for entry in vector], row[row > 0], rtol=1e-4, atol=1e-4)


def qwen_logits(path: Path, texts: list[str], instruction: str | None = None) -> np.ndarray:
    """Relevance of each text as in the model card of Qwen3-Reranker: the logit of `yes` minus that of `no`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    prefix, _, suffix = PUBLISHED["qwen3-reranker"].parts
    task = instruction or "Given a web search query, retrieve relevant passages that answer the query"
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    found = []
    for text in texts:
        body = f"<Instruct>: {task}\n<Query>: {QUERY}\n<Document>: {text}"
        ids = [token for part in (prefix, body, suffix) for token in tokenizer.encode(part, add_special_tokens=False)]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        found.append(float(logits[yes] - logits[no]))
    return np.array(found)


def test_a_language_model_answers_yes_or_no(server: RunningServer, paths: dict[str, Path]) -> None:
    texts = [text for text in TEXTS if len(text) < 80]
    raw = by_index(post(server, "/rerank", model="qwen", query=QUERY, texts=texts, raw_scores=True))
    np.testing.assert_allclose(raw, qwen_logits(paths["qwen"], texts), atol=1e-4)
    scores = by_index(post(server, "/rerank", model="qwen", query=QUERY, texts=texts))
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-raw)), atol=1e-6)
    body = {"model": "qwen", "query": QUERY, "texts": texts, "instruction": "{query} find two houses"}
    told = by_index(post(server, "/rerank", **body, raw_scores=True))
    np.testing.assert_allclose(told, qwen_logits(paths["qwen"], texts, body["instruction"]), atol=1e-4)
    assert np.abs(told - raw).max() > 1e-3, "the instruction has no effect"
    jina = post(server, "/v1/rerank", model="qwen", query=QUERY, documents=texts, instruction=body["instruction"])
    assert [document["index"] for document in jina["results"]] == np.argsort(-told, kind="stable").tolist()


def test_a_reranker_generates_no_text(server: RunningServer) -> None:
    assert "/rerank" in refused(server, "/generate", model="qwen", prompt="a")["message"]
    (about,) = [model for model in server.get("/info").json()["models"] if model["name"] == "qwen"]
    assert about["tasks"] == ["rerank"] and about["kv_bytes"] == 0 and about["takes_instruction"] is True


def test_the_prompt_of_sentence_transformers(server: RunningServer, paths: dict[str, Path]) -> None:
    oracle = sentence_transformers.CrossEncoder(str(paths["answers"]), device="cpu")
    expected = oracle.predict([(QUERY, text) for text in TEXTS], activation_fn=torch.nn.Identity())
    raw = by_index(post(server, "/rerank", model="answers", query=QUERY, texts=TEXTS, raw_scores=True))
    np.testing.assert_allclose(raw, expected, atol=1e-4)
    expected = oracle.predict([(QUERY, text) for text in TEXTS], prompt="other", activation_fn=torch.nn.Identity())
    body = {"model": "answers", "query": QUERY, "texts": TEXTS, "instruction": "other"}
    np.testing.assert_allclose(by_index(post(server, "/rerank", **body, raw_scores=True)), expected, atol=1e-4)


def test_refusals_name_the_field(server: RunningServer) -> None:
    error = refused(server, "/rerank", model="colbert", query=QUERY, texts=TEXTS, instruction="x")
    assert error["param"] == "instruction"
    error = refused(server, "/rerank", model="qwen", query=QUERY, texts=TEXTS, truncation_direction="left")
    assert error["param"] == "truncation_direction"
    error = refused(server, "/rerank", model="qwen", query=" ".join(CORPUS), texts=["a"])
    assert error["param"] == "query"
    error = refused(server, "/embed", model="colbert", inputs="a", late_interaction="document", dimensions=17)
    assert error["param"] == "dimensions"


def test_the_commands_of_the_page(server: RunningServer) -> None:
    vectors, ranked = requests_page.answers(server.url, "colbert", "colbert")
    assert np.array(vectors[0]).shape[1] == 16 and len(ranked) == 2
    (ranked,) = requests_page.answers(server.url, "qwen", "qwen")
    assert sorted(document["index"] for document in ranked) == [0, 1]
