"""Checkpoints with different modules for queries and documents, such as inference-free SPLADE."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer import modules
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SparseStaticEmbedding, SpladePooling

from models.checkpoint.sentence_files import module_list
from models.config import ConfigError
from server.errors import CheckpointError
from server.text.checkpoint_text import load
from tests.e2e.conftest import RunningServer, serving
from tests.text import checkpoints
from tests.text.checkpoints import CORPUS

TEXTS = [CORPUS[0], "a", CORPUS[40] + " " + CORPUS[40]]
CASES = {"plain": {}, "query-first": {"default_route": "query"}, "mapped": {}}


def _make(directory: Path, default_route: str = "document") -> Path:
    body = checkpoints.write_bert(directory / "body", lower=False)
    size = len((body / "vocab.txt").read_text().splitlines())
    config = transformers.BertConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    transformers.BertForMaskedLM(config).save_pretrained(body)
    documents = MLMTransformer(str(body))
    queries = SparseStaticEmbedding(documents.tokenizer, weight=(torch.rand(size) - 0.3).relu())
    router = Router.for_query_document([queries], [documents, SpladePooling("max")], default_route=default_route)
    SparseEncoder(modules=[router], device="cpu").save(str(directory / "saved"))
    return directory / "saved"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: _make(tmp_path_factory.mktemp(name), **options) for name, options in CASES.items()}
    file = made["mapped"] / "router_config.json"
    content = json.loads(file.read_text().replace('"query": [', '"quick": [').replace('"document": [', '"slow": ['))
    content["parameters"]["default_route"] = "slow"
    content["parameters"]["route_mappings"] = {"('query', 'text')": "quick", "('document', None)": "slow"}
    file.write_text(json.dumps(content))
    return made


@pytest.fixture(scope="module")
def server(saved: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    named = [f"{name}={path}" for name, path in saved.items()]
    options = ("--dtype", "float32", "--device", "cpu", "--threads", "1")
    with serving(tmp_path_factory.mktemp("log") / "log", *named, *options) as running:
        yield running


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("side", [None, "query", "document"])
def test_sparse_vectors(server: RunningServer, saved: dict[str, Path], name: str, side: str | None) -> None:
    oracle = SparseEncoder(str(saved[name]), device="cpu")
    expected = oracle.encode(TEXTS, task=side, convert_to_sparse_tensor=False).numpy()
    body = {"model": name, "inputs": TEXTS} | ({} if side is None else {"prompt_name": side})
    response = httpx.post(f"{server.url}/embed_sparse", json=body, timeout=60)
    assert response.status_code == 200, response.text
    found = np.zeros_like(expected)
    for row, entries in zip(found, response.json(), strict=True):
        assert all(entry["value"] > 0 for entry in entries)
        for entry in entries:
            row[entry["index"]] = entry["value"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_another_name_is_refused(server: RunningServer) -> None:
    body = {"model": "plain", "inputs": "a", "prompt_name": "passage"}
    refused = httpx.post(f"{server.url}/embed_sparse", json=body, timeout=60)
    assert refused.status_code == 422 and "document, query" in refused.text


def _changed(source: Path, target: Path, **changes: object) -> Path:
    shutil.copytree(source, target, dirs_exist_ok=True)
    folder = target / "query_0_SparseStaticEmbedding"
    if "weight" in changes:
        save_file({"weight": changes["weight"]}, folder / "model.safetensors")
    if "vocabulary" in changes:
        content = json.loads((folder / "tokenizer.json").read_text())
        content["model"]["max_input_chars_per_word"] = 7
        (folder / "tokenizer.json").write_text(json.dumps(content))
    if "missing" in changes:
        (folder / "model.safetensors").unlink()
    return target


def test_damaged_weights_are_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    weight = load_file(saved["plain"] / "query_0_SparseStaticEmbedding" / "model.safetensors")["weight"]
    changes = [
        ({"weight": weight[:-1]}, "weights for a vocabulary"),
        ({"weight": weight[:, None]}, "with one finite number"),
        ({"weight": np.full_like(weight, np.inf)}, "with one finite number"),
        ({"vocabulary": True}, "its tokenizer differs"),
        ({"missing": True}, "no .*model.safetensors"),
    ]
    for index, (change, message) in enumerate(changes):
        directory = _changed(saved["plain"], tmp_path / str(index), **change)
        with pytest.raises(CheckpointError, match=f"sparse: .*{message}"):
            load("sparse", directory)


def test_two_encoders_are_not_one_model(tmp_path: Path) -> None:
    body = checkpoints.write_bert(tmp_path / "body", lower=False)
    size = len((body / "vocab.txt").read_text().splitlines())
    config = transformers.BertConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(body)
    routes = [[modules.Transformer(str(body)), modules.Pooling(16)] for _ in range(2)]
    SentenceTransformer(modules=[Router.for_query_document(*routes)], device="cpu").save(str(tmp_path / "saved"))
    with pytest.raises(ConfigError, match=r"router_config\.json.*Transformer, Pooling.*two models"):
        module_list(tmp_path / "saved")
