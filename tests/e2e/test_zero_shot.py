"""Answers of /zero_shot_classify equal those of the zero-shot pipeline of transformers, for encoders and BART."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers

from tests.e2e.conftest import RunningServer, serving
from tests.e2e.encoder_checkpoints import FAMILIES, LONGEST, tokenizer, write_encoder
from tests.parity.checkpoints import write_model
from tests.text.checkpoints import CORPUS, write_byte_level

ORDERS = {
    "bert": ["contradiction", "neutral", "entailment"],
    "roberta": ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"],
    "distilbert": ["entailment", "not_entailment"],
    "bart": ["contradiction", "neutral", "entailment"],
}
TEXTS = [CORPUS[0], CORPUS[30], " ".join(CORPUS[:12])]
LABELS = ["about a frog", "sailor", "the café", "Nobody"]


def write_bart(directory: Path, labels: dict[int, str]) -> Path:
    write_byte_level(directory, "roberta")
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BartTokenizer"}))
    config = transformers.BartConfig(
        vocab_size=len(json.loads((directory / "vocab.json").read_text())),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        max_position_embeddings=LONGEST,
        id2label=labels,
        label2id={name: index for index, name in labels.items()},
    )
    write_model(directory, config, "BartForSequenceClassification", std=0.2)
    return directory


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for family, order in ORDERS.items():
        labels, directory = dict(enumerate(order)), tmp_path_factory.mktemp(family)
        if family in FAMILIES:
            named = {"id2label": labels, "label2id": {name: index for index, name in labels.items()}}
            found[family] = write_encoder(directory, family, "SequenceClassification", std=0.3, **named)
        else:
            found[family] = write_bart(directory, labels)
    return found


@pytest.fixture(scope="module")
def server(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = [f"{name}={directory}" for name, directory in checkpoints.items()]
    with serving(
        tmp_path_factory.mktemp("server") / "log", *models, "--dtype", "float32", "--device", "cpu"
    ) as running:
        yield running


@pytest.mark.parametrize(
    "fields",
    [{}, {"multi_label": True}, {"hypothesis_template": "{}, says the text"}, {"candidate_labels": ["sailor"]}],
    ids=["default", "multi", "template", "one"],
)
@pytest.mark.parametrize("family", ORDERS)
def test_scores(server: RunningServer, checkpoints: dict[str, Path], family: str, fields: dict) -> None:
    oracle = transformers.pipeline(
        "zero-shot-classification", str(checkpoints[family]), tokenizer=tokenizer(checkpoints[family]), device="cpu"
    )
    fields = {"candidate_labels": LABELS, **fields}
    found = server.post("/zero_shot_classify", json={"model": family, "inputs": TEXTS, **fields}).json()
    assert len(oracle.tokenizer(TEXTS[-1]).input_ids) > LONGEST, "one text must be truncated"
    for text, ours in zip(TEXTS, found, strict=True):
        theirs = oracle(text, **fields)
        assert ours["labels"] == theirs["labels"]
        assert ours["scores"] == pytest.approx(theirs["scores"], abs=1e-5)
    scores = found[0]["scores"]
    assert len(scores) == 1 or max(scores) - min(scores) > 1e-3, "the random checkpoint must separate the labels"
