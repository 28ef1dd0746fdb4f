"""Entities and classes of GLiNER2 checkpoints equal those of the published code (`gliner2_oracle.json`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.checkpoint.checkpoint_heads import read_files
from models.config import ConfigError
from tests.e2e import gliner2_checkpoints
from tests.e2e.conftest import RunningServer, serving
from tests.e2e.gliner2_checkpoints import CLASSES, KINDS, LABELS, TASK, TEXTS
from tests.parity.checkpoints import edit_config

ORACLE = json.loads((Path(__file__).parent / "gliner2_oracle.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("gliner2")
    for kind in KINDS:
        (root / kind).mkdir()
    named = [f"{kind}={gliner2_checkpoints.write(root / kind, kind)}" for kind in KINDS]
    with serving(root / "log", *named, "--dtype", "float32", "--device", "cpu", "--threads", "1") as running:
        yield running


def post(server: RunningServer, path: str, **body: object) -> Any:
    response = server.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_oracle_has_these_inputs_and_finds_something() -> None:
    assert (ORACLE["texts"], ORACLE["labels"]) == (TEXTS, LABELS)
    assert (ORACLE["classes"], ORACLE["task"]) == (CLASSES, TASK)
    assert min(len(found) for text in ORACLE["entities"]["projection 0.2"][:3] for found in text.values()) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threshold", [0.5, 0.2])
def test_entities(server: RunningServer, kind: str, threshold: float) -> None:
    body = {"model": kind, "labels": LABELS, "threshold": threshold}
    together = post(server, "/token_classify", inputs=TEXTS, **body)
    for text, found, expected in zip(TEXTS, together, ORACLE["entities"][f"{kind} {threshold}"], strict=True):
        for label in LABELS:
            mine = [entity for entity in found if entity["entity_group"] == label]
            # The published code adds a full stop to a text without a final punctuation mark, and counts it as text.
            inside = [entity for entity in expected[label] if entity["start"] < len(text)]
            theirs = sorted(inside, key=lambda entity: entity["start"])
            assert [(entity["start"], entity["end"], entity["word"]) for entity in mine] == [
                (entity["start"], min(entity["end"], len(text)), text[entity["start"] : entity["end"]])
                for entity in theirs
            ]
            np.testing.assert_allclose(
                [entity["score"] for entity in mine], [entity["confidence"] for entity in theirs], atol=2e-5
            )
    assert [post(server, "/token_classify", inputs=text, **body) for text in TEXTS] == together, "batch-mates matter"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_classes(server: RunningServer, kind: str, many: bool) -> None:
    body = {"model": kind, "candidate_labels": CLASSES, "task": TASK, "multi_label": many}
    answers = post(server, "/zero_shot_classify", inputs=TEXTS, **body)
    for found, expected in zip(answers, ORACLE["scores"][f"{kind} {many}"], strict=True):
        scores = dict(zip(found["labels"], found["scores"], strict=True))
        theirs = expected if many else [expected]
        if not many:
            assert found["labels"][0] == expected["label"] and abs(sum(scores.values()) - 1) < 1e-5
        for entry in theirs:
            assert abs(scores[entry["label"]] - entry["confidence"]) < 2e-5


def test_the_name_of_a_task_matters_and_is_refused_elsewhere(server: RunningServer) -> None:
    body = {"model": "projection", "candidate_labels": CLASSES, "inputs": TEXTS[0]}
    assert post(server, "/zero_shot_classify", **body) != post(server, "/zero_shot_classify", **body, task=TASK)
    refused = server.post("/zero_shot_classify", json={**body, "candidate_labels": ["[L]"]})
    assert refused.status_code == 422 and refused.json()["error"]["param"] == "candidate_labels"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("architecture", "boundary"), ("counting_layer", "count_lstm_moe"), ("token_pooling", "mean")],
)
def test_other_layouts_are_refused_by_name(tmp_path: Path, setting: str, value: str) -> None:
    gliner2_checkpoints.write(tmp_path, "projection")
    edit_config(tmp_path, **{setting: value})
    with pytest.raises(ConfigError, match=setting):
        read_files(tmp_path)
