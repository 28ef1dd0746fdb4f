"""Checkpoints of sentence-transformers with separate encoders for queries and documents equal the library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer import modules
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

from server.errors import StartError
from server.model_sources import find_models
from server.settings.settings import Settings
from tests.e2e.conftest import RunningServer, serving
from tests.e2e.encoder_checkpoints import write_encoder
from tests.text import checkpoints
from tests.text.checkpoints import CORPUS
from weights.errors import ResolveError
from weights.resolve import file_in
from weights.router_views import route_of, route_views

TEXTS = [CORPUS[0], "a", CORPUS[40] + " " + CORPUS[40]]
CASES = {"encoders": "document", "query-first": "query", "static": "document"}
"""Default route of each checkpoint: the encoder of texts without a prompt name."""


def _encoder(directory: Path, width: int, seed: int) -> Any:
    body = checkpoints.write_bert(directory, lower=False)
    config = transformers.BertConfig(
        vocab_size=len((body / "vocab.txt").read_text().splitlines()),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    torch.manual_seed(seed)
    transformers.BertModel(config).save_pretrained(body)
    return modules.Transformer(str(body))


def _make(directory: Path, name: str) -> Path:
    documents = _encoder(directory / "documents", 32, 0)
    if name == "static":
        torch.manual_seed(1)
        queries = [modules.StaticEmbedding(documents.tokenizer, embedding_dim=32)]
    else:
        dense = modules.Dense(16, 32, activation_function=torch.nn.Tanh())
        queries = [_encoder(directory / "queries", 16, 1), modules.Pooling(16, "mean"), dense]
    routes = [documents, modules.Pooling(32, "cls")]
    router = Router.for_query_document(queries, routes, default_route=CASES[name])
    prompts = {"query": "search: ", "other": "about: "} if name == "query-first" else {}
    model = SentenceTransformer(modules=[router, modules.Normalize()], device="cpu", prompts=prompts)
    model.save(str(directory / "saved"))
    return directory / "saved"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: _make(tmp_path_factory.mktemp(name), name) for name in CASES}


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a sparse checkpoint with one masked language model for queries and one for documents."""
    directory = tmp_path_factory.mktemp("sparse")
    routes = []
    for side, std in (("query", 0.3), ("document", 0.2)):
        body = write_encoder(directory / side, "bert", "MaskedLM", std=std)
        routes.append([MLMTransformer(str(body)), SpladePooling("max")])
    router = Router.for_query_document(*routes, default_route="document")
    SparseEncoder(modules=[router], device="cpu").save(str(directory / "saved"))
    return directory / "saved"


@pytest.fixture(scope="module")
def server(saved: dict[str, Path], sparse: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    named = [f"{name}={path}" for name, path in {**saved, "sparse": sparse}.items()]
    options = ("--dtype", "float32", "--device", "cpu", "--threads", "1")
    with serving(tmp_path_factory.mktemp("log") / "log", *named, *options) as running:
        yield running


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("side", [None, "query", "document"])
def test_vectors(server: RunningServer, saved: dict[str, Path], name: str, side: str | None) -> None:
    oracle = SentenceTransformer(str(saved[name]), device="cpu")
    expected = oracle.encode(TEXTS, task=side, prompt_name=side if side in oracle.prompts else None)
    body = {"model": name, "inputs": TEXTS} | ({} if side is None else {"prompt_name": side})
    response = server.post("/embed", json=body)
    assert response.status_code == 200, response.text
    np.testing.assert_allclose(np.array(response.json()), expected, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("side", [None, "query", "document"])
def test_similarity(server: RunningServer, saved: dict[str, Path], name: str, side: str | None) -> None:
    oracle = SentenceTransformer(str(saved[name]), device="cpu")
    vectors = oracle.encode(TEXTS, task=side, prompt_name=side if side in oracle.prompts else None)
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    body = {"model": name, "inputs": inputs} | ({} if side is None else {"prompt_name": side})
    response = server.post("/similarity", json=body)
    assert response.status_code == 200, response.text
    np.testing.assert_allclose(response.json(), oracle.similarity(vectors[:1], vectors[1:])[0], atol=1e-5)


def test_chunks_go_through_the_route_of_their_prompt(server: RunningServer) -> None:
    """Late chunking uses the encoder of the prompt: it works for queries, and is refused for documents.

    The encoder of documents uses only its first token, so it has no vectors for chunks.
    """
    body = {"inputs": "a house", "chunks": "sentences"}
    queries = [
        server.post("/embed", json={"model": name, "prompt_name": "query", **body})
        for name in ("encoders", "encoders.query")
    ]
    assert [response.status_code for response in queries] == [200, 200]
    assert queries[0].json() == queries[1].json()
    refused = server.post("/embed", json={"model": "encoders", **body})
    assert refused.status_code == 422 and "cls" in refused.text


@pytest.mark.parametrize("side", [None, "query", "document"])
def test_sparse_vectors_of_two_encoders(server: RunningServer, sparse: Path, side: str | None) -> None:
    oracle = SparseEncoder(str(sparse), device="cpu")
    expected = oracle.encode(TEXTS, task=side, convert_to_sparse_tensor=False).numpy()
    body = {"model": "sparse", "inputs": TEXTS} | ({} if side is None else {"prompt_name": side})
    response = server.post("/embed_sparse", json=body)
    assert response.status_code == 200, response.text
    found = np.zeros_like(expected)
    for row, entries in zip(found, response.json(), strict=True):
        for entry in entries:
            row[entry["index"]] = entry["value"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_routes_differ_and_have_names_of_their_own(server: RunningServer) -> None:
    def vector(**body: object) -> list[float]:
        found: list[list[float]] = server.post("/embed", json={"inputs": "a house", **body}).json()
        return found[0]

    queries = vector(model="encoders", prompt_name="query")
    assert not np.allclose(queries, vector(model="encoders", prompt_name="document"))
    assert vector(model="encoders.query", prompt_name="query") == queries
    assert vector(model="encoders.query", prompt_name="document") == vector(model="encoders")
    names = {model["name"] for model in server.get("/info").json()["models"]}
    served = {*CASES, "sparse"}
    assert names == served | {f"{name}.query" for name in served}


def test_another_prompt_goes_through_the_default_route(server: RunningServer, saved: dict[str, Path]) -> None:
    oracle = SentenceTransformer(str(saved["query-first"]), device="cpu")
    expected = oracle.encode(TEXTS, prompt_name="other")
    response = server.post("/embed", json={"model": "query-first", "inputs": TEXTS, "prompt_name": "other"})
    np.testing.assert_allclose(np.array(response.json()), expected, atol=1e-5)
    refused = server.post("/embed", json={"model": "encoders", "inputs": "a", "prompt_name": "passage"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "prompt_name")


def test_a_view_has_links_only(saved: dict[str, Path]) -> None:
    views = route_views(saved["encoders"])
    assert {side: path.name for side, path in views.items()} == {"query": "query", "document": "document"}
    route = route_of(views["query"])
    assert route is not None and (route.side, route.default) == ("query", "document")
    assert all(path.is_symlink() for path in views["query"].iterdir() if path.suffix != ".json")
    assert route_views(views["query"]) == {} and route_of(saved["encoders"]) is None


def test_a_file_of_a_checkpoint_makes_no_view(saved: dict[str, Path], tmp_path: Path) -> None:
    """A checkpoint cannot pretend to be a view of a router, so links out of its directory are refused.

    Views are recognised by their location, not by the file `triptych_route.json` alone.
    """
    (tmp_path / "triptych_route.json").write_text('{"side": "query", "default": "query", "checkpoint": "/"}')
    (tmp_path / "config.json").symlink_to("/etc/hostname")
    assert route_of(tmp_path) is None
    with pytest.raises(ResolveError, match="leads out of the checkpoint"):
        file_in(tmp_path, "config.json")


def test_the_second_name_of_a_router_must_be_free(saved: dict[str, Path]) -> None:
    models = [f"encoders={saved['encoders']}", f"encoders.query={saved['static']}"]
    with pytest.raises(StartError, match=r"'encoders\.query' is the name of two models"):
        find_models(Settings(models=models))
