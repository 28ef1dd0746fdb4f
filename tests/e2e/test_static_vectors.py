"""Static embeddings (one vector per token) of sentence-transformers' StaticEmbedding and of Model2Vec."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer

from models.checkpoint.loader import load_model
from models.config import ConfigError
from server.text.tokenizers.tokenizer_files import read_tokenizer_files
from server.text.tokenizers.vocabulary_files import build_word_piece
from tests.e2e.conftest import RunningServer, serving
from tests.text import checkpoints
from tests.text.checkpoints import CORPUS
from weights.errors import WeightsError

TEXTS = [CORPUS[0], "a", " ".join(CORPUS[3:9]), CORPUS[40]]
UNKNOWN = "NOBODY sees THE café ☃"
CPU = torch.device("cpu")


def _tokenizer(directory: Path) -> Tokenizer:
    body = checkpoints.write_bert(directory / "body", lower=False)
    return build_word_piece(body / "vocab.txt", read_tokenizer_files(body))


def _static(directory: Path, folder: str = "", truncated: bool = False) -> Path:
    """Save a checkpoint with StaticEmbedding and a dense layer in the format of sentence-transformers.

    folder: folder of the StaticEmbedding's files, or empty. truncated: whether its tokenizer truncates texts.
    """
    tokenizer = _tokenizer(directory)
    if truncated:
        tokenizer.enable_truncation(7)
    torch.manual_seed(0)
    parts = [modules.StaticEmbedding(tokenizer, embedding_dim=24), modules.Dense(24, 16), modules.Normalize()]
    saved = directory / "saved"
    SentenceTransformer(modules=parts, device="cpu", prompts={"query": "The sailor: "}).save(str(saved))
    if folder:
        listed = json.loads((saved / "modules.json").read_text())
        listed[0]["path"] = folder
        (saved / "modules.json").write_text(json.dumps(listed))
        (saved / folder).mkdir()
        for name in ("model.safetensors", "tokenizer.json"):
            (saved / name).rename(saved / folder / name)
    return saved


def _model2vec(directory: Path, quantized: bool = False, listed: bool = True, dtype=np.float32) -> Path:
    """Write a checkpoint in the format of `StaticModel.save_pretrained` of model2vec 0.10."""
    tokenizer, saved = _tokenizer(directory), directory / "saved"
    saved.mkdir()
    tokenizer.save(str(saved / "tokenizer.json"))
    rows, random = tokenizer.get_vocab_size(), np.random.default_rng(0)
    numbers = (random.standard_normal((9 if quantized else rows, 12)) * 30).astype(dtype)
    tensors = {"embeddings": numbers}
    if quantized:
        tensors["mapping"] = random.integers(0, 9, rows)
        tensors["weights"] = random.random(rows).astype(np.float32)
    save_file(tensors, saved / "model.safetensors")
    settings = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": listed, "hidden_dim": 12}
    (saved / "config.json").write_text(json.dumps({**settings, "max_length": 90}))
    if listed:
        kinds = [("", "."), ("1_Normalize", "1_Normalize")]
        types = [f"sentence_transformers.models.{name}" for name in ("StaticEmbedding", "Normalize")]
        content = [{"idx": i, "name": str(i), "path": kinds[i][1], "type": types[i]} for i in range(2)]
        (saved / "modules.json").write_text(json.dumps(content))
    return saved


CASES = {
    "static": lambda directory: _static(directory),
    "in-folder": lambda directory: _static(directory, "0_StaticEmbedding"),
    "truncated": lambda directory: _static(directory, truncated=True),
    "model2vec": lambda directory: _model2vec(directory),
    "int8": lambda directory: _model2vec(directory, dtype=np.int8, listed=False),
    "quantized": lambda directory: _model2vec(directory, quantized=True, dtype=np.float16),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in CASES.items()}


@pytest.fixture(scope="module")
def server(saved: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    named = [f"{name}={path}" for name, path in saved.items()]
    options = ("--dtype", "float32", "--device", "cpu", "--threads", "1")
    with serving(tmp_path_factory.mktemp("log") / "log", *named, *options) as running:
        yield running


def embed(server: RunningServer, name: str, inputs: list[str], **fields: object) -> np.ndarray:
    body = {"model": name, "inputs": inputs, "normalize": False, **fields}
    response = httpx.post(f"{server.url}/embed", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return np.array(response.json())


@pytest.mark.parametrize("name", ["static", "in-folder", "truncated"])
def test_vectors_of_sentence_transformers(server: RunningServer, saved: dict[str, Path], name: str) -> None:
    oracle = SentenceTransformer(str(saved[name]), device="cpu")
    texts = [*TEXTS, UNKNOWN, " ".join(CORPUS)]
    for fields, prompt in (({}, None), ({"prompt_name": "query"}, "query")):
        expected = oracle.encode(texts, prompt_name=prompt)
        found = embed(server, name, texts, **fields)
        np.testing.assert_allclose(found / np.linalg.norm(found, axis=1, keepdims=True), expected, atol=1e-5)


def _of_model2vec(directory: Path, text: str) -> np.ndarray:
    """The vector of a text as `StaticModel.encode` computes it: the weighted mean of its token vectors.

    Unknown tokens, and tokens beyond 90, are left out.
    """
    tensors, tokenizer = load_file(directory / "model.safetensors"), Tokenizer.from_file(f"{directory}/tokenizer.json")
    tokenizer.enable_truncation(90)
    ids = [token for token in tokenizer.encode(text, add_special_tokens=False).ids if token != 1]
    rows = tensors["embeddings"].astype(np.float64)[tensors["mapping"][ids] if "mapping" in tensors else ids]
    weights = tensors["weights"][ids] if "weights" in tensors else np.ones(len(ids))
    return (rows * weights[:, None]).mean(axis=0)


@pytest.mark.parametrize("name", ["model2vec", "int8", "quantized"])
def test_vectors_of_model2vec(server: RunningServer, saved: dict[str, Path], name: str) -> None:
    texts = [*TEXTS, UNKNOWN]
    expected = np.array([_of_model2vec(saved[name], text) for text in texts])
    np.testing.assert_allclose(embed(server, name, texts), expected, atol=1e-4)
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(embed(server, name, texts, normalize=True), unit, atol=1e-5)
    if name != "int8":  # which sentence-transformers cannot add
        oracle = SentenceTransformer(str(saved[name]), device="cpu")
        np.testing.assert_allclose(oracle.encode(TEXTS), unit[: len(TEXTS)], atol=1e-5)


def test_a_long_text_is_cut_or_refused(server: RunningServer, saved: dict[str, Path]) -> None:
    (cut,) = embed(server, "model2vec", [" ".join(CORPUS)])
    np.testing.assert_allclose(cut, _of_model2vec(saved["model2vec"], " ".join(CORPUS)), atol=1e-4)
    body = {"model": "model2vec", "inputs": " ".join(CORPUS), "truncate": False}
    refused = httpx.post(f"{server.url}/embed", json=body, timeout=60)
    assert refused.status_code == 422 and "90" in refused.text


def test_other_routes(server: RunningServer, saved: dict[str, Path]) -> None:
    unit = embed(server, "static", TEXTS, normalize=True)
    body = {"model": "static", "input": TEXTS}
    answer = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60).json()
    np.testing.assert_allclose([item["embedding"] for item in answer["data"]], unit, atol=1e-6)
    body = {"model": "static", "inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}
    found = httpx.post(f"{server.url}/similarity", json=body, timeout=60).json()
    np.testing.assert_allclose(found, unit[1:] @ unit[0], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.pop("embeddings"), "embeddings"),
        (lambda tensors: tensors.update(mapping=tensors["mapping"][:-1]), "mapping"),
        (lambda tensors: tensors.update(mapping=tensors["mapping"] + 9), "mapping"),
        (lambda tensors: tensors.update(mapping=tensors["mapping"] - 9), "mapping"),
        (lambda tensors: tensors.pop("mapping"), "weights"),
    ],
)
def test_damaged_tables_are_refused(saved: dict[str, Path], tmp_path: Path, change, named: str) -> None:
    shutil.copytree(saved["quantized"], tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises((WeightsError, ConfigError), match=named):
        load_model(tmp_path, torch.float32, CPU)
