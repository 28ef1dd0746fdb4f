"""What the encoder routes answer over HTTP is what transformers' own pipelines make of the same files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from tests.e2e.conftest import RunningServer, start_server
from tests.e2e.encoder_checkpoints import FAMILIES, tokenizer, write_encoder
from tests.e2e.test_oracle import post

LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}
HEADS = {
    "fill": ("MaskedLM", {}),
    "rank": ("SequenceClassification", {"num_labels": 1}),
    "tag": ("TokenClassification", {"id2label": LABELS, "label2id": {label: at for at, label in LABELS.items()}}),
}
TEXTS = [
    "The old sailor sees two houses!",
    "Über uns schreibt the café.",
    "My sister's friend doesn't like naïve questions? Nobody counts 1,234.56 of e-mails",
]
every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("encoders")
    return {
        f"{family}-{name}": write_encoder(root / f"{family}-{name}", family, head, **settings)
        for family in FAMILIES
        for name, (head, settings) in HEADS.items()
    }


@pytest.fixture(scope="module")
def server(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = [f"{name}={directory}" for name, directory in checkpoints.items()]
    running = start_server(tmp_path_factory.mktemp("server") / "log", *models)
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def pipeline(task: str, directory: Path, **settings):
    return transformers.pipeline(task, str(directory), tokenizer=tokenizer(directory), device="cpu", **settings)


@every_family
@pytest.mark.parametrize("asked", [{}, {"top_k": 9}, {"targets": ["."], "top_k": 3}], ids=["usual", "nine", "targets"])
def test_fill_mask(server: RunningServer, checkpoints: dict[str, Path], family: str, asked: dict) -> None:
    name = f"{family}-fill"
    oracle = pipeline("fill-mask", checkpoints[name])
    mask = oracle.tokenizer.mask_token
    if "targets" in asked:
        words = [token for token in oracle.tokenizer.get_vocab() if token.isalpha() and len(token) > 2]
        asked = asked | {"targets": [*asked["targets"], *sorted(words)[:4]]}
    texts = [text.replace(word, mask) for text, word in zip(TEXTS, ("sailor", "the café", "Nobody"), strict=True)]
    for text, found in zip(texts, post(server, "/fill_mask", {"model": name, "inputs": texts, **asked}), strict=True):
        expected = oracle(text, **asked)
        assert [one["token"] for one in found] == [one["token"] for one in expected]
        for ours, theirs in zip(found, expected, strict=True):
            assert ours["score"] == pytest.approx(theirs["score"], rel=1e-3)
            assert (ours["token_str"], ours["sequence"]) == (theirs["token_str"], theirs["sequence"])


@every_family
@torch.inference_mode()
def test_rerank(server: RunningServer, checkpoints: dict[str, Path], family: str) -> None:
    name = f"{family}-rank"
    reader = tokenizer(checkpoints[name])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoints[name])
    expected = [float(model(**reader("Nobody?", text, return_tensors="pt")).logits) for text in TEXTS]
    body = {"model": name, "query": "Nobody?", "texts": TEXTS}
    raw = post(server, "/rerank", {**body, "raw_scores": True})
    assert [one["index"] for one in raw] == sorted(range(len(TEXTS)), key=lambda index: -expected[index])
    assert [one["score"] for one in raw] == pytest.approx([expected[one["index"]] for one in raw], abs=1e-4)
    usual = [one["score"] for one in post(server, "/rerank", body)]
    assert usual == pytest.approx(torch.tensor(sorted(expected, reverse=True)).sigmoid().tolist(), abs=1e-5)


def same_entities(found: list[dict], expected: list[dict]) -> None:
    assert [one | {"score": 0} for one in found] == [one | {"score": 0} for one in expected]
    scores = [float(one["score"]) for one in expected]
    assert [one["score"] for one in found] == pytest.approx(scores, rel=1e-3)


@every_family
@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_entities(server: RunningServer, checkpoints: dict[str, Path], family: str, strategy: str) -> None:
    oracle = pipeline("token-classification", checkpoints[f"{family}-tag"], aggregation_strategy=strategy)
    texts = [TEXTS[0], TEXTS[1], "L'élève aime [MASK] 日本語 e-mails !"]
    body = {"model": f"{family}-tag", "inputs": texts, "aggregation_strategy": strategy}
    expected = [oracle(text) for text in texts]
    assert sum(map(len, expected)) > 6
    for found, entities in zip(post(server, "/token_classify", body), expected, strict=True):
        same_entities(found, entities)
    if strategy == "simple":
        same_entities(post(server, "/ner", {"model": f"{family}-tag", "inputs": texts[0]}), expected[0])


@every_family
@pytest.mark.parametrize("strategy", ["simple", "average"])
@pytest.mark.parametrize("stride", [0, 7, 20])
def test_entities_of_long_texts(
    server: RunningServer, checkpoints: dict[str, Path], family: str, strategy: str, stride: int
) -> None:
    oracle = pipeline(
        "token-classification", checkpoints[f"{family}-tag"], aggregation_strategy=strategy, stride=stride
    )
    text = " ".join(TEXTS * 4)
    body = {"model": f"{family}-tag", "inputs": text, "aggregation_strategy": strategy, "stride": stride}
    same_entities(post(server, "/token_classify", body), oracle(text))
