"""Entities of GLiNER checkpoints equal those of the published code (`gliner_oracle.json`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e import gliner_checkpoints, requests_page
from tests.e2e.conftest import RunningServer, serving
from tests.e2e.gliner_checkpoints import LABELS, SPANS, TEXTS, WORDS

ORACLE = json.loads((Path(__file__).parent / "gliner_oracle.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("gliner")
    named = [f"{kind}={gliner_checkpoints.write(root / kind, kind)}" for kind in (SPANS, WORDS)]
    with serving(root / "log", *named, "--dtype", "float32", "--device", "cpu", "--threads", "1") as running:
        yield running


def find(server: RunningServer, **body: object) -> Any:
    response = server.post("/token_classify", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    names = [(entity["entity_group"], entity["start"], entity["end"], entity["word"]) for entity in found]
    assert names == [(entity["label"], entity["start"], entity["end"], entity["text"]) for entity in expected]
    np.testing.assert_allclose(
        [entity["score"] for entity in found], [entity["score"] for entity in expected], atol=2e-5
    )


def test_the_oracle_has_these_texts_and_finds_something() -> None:
    assert (ORACLE["texts"], ORACLE["labels"]) == (TEXTS, LABELS)
    for kind in (SPANS, WORDS):
        found = [entity for text in ORACLE["entities"][f"{kind} 0.2"] for entity in text]
        assert len(found) > 5 and len({entity["label"] for entity in found}) > 1


@pytest.mark.parametrize("kind", [SPANS, WORDS])
@pytest.mark.parametrize("threshold", [0.5, 0.2])
def test_entities(server: RunningServer, kind: str, threshold: float) -> None:
    body = {"model": kind, "labels": LABELS, "threshold": threshold}
    together = find(server, inputs=TEXTS, **body)
    for found, expected in zip(together, ORACLE["entities"][f"{kind} {threshold}"], strict=True):
        same(found, expected)
    assert [find(server, inputs=text, **body) for text in TEXTS] == together, "batch-mates matter"


def test_a_long_text_is_read_in_windows(server: RunningServer) -> None:
    """A text longer than the checkpoint's maximum is processed in windows; entities of all windows are found."""
    text = ". ".join(TEXTS * 4)
    found = find(server, model=SPANS, labels=LABELS, inputs=text, stride=8)
    assert max(entity["end"] for entity in found) > len(text) // 2
    ends = [0, *(entity["end"] for entity in found)]
    assert all(end <= entity["start"] for end, entity in zip(ends, found, strict=False)), "entities overlap"
    assert find(server, model=SPANS, labels=LABELS, inputs=["", " \n"]) == [[], []]


def test_refusals_name_the_field(server: RunningServer) -> None:
    def refused(**body: object) -> str:
        response = server.post("/token_classify", json={"model": SPANS, "inputs": TEXTS[0]} | body)
        assert response.status_code == 422, response.text
        param: str = response.json()["error"]["param"]
        return param

    assert refused() == "labels"
    assert refused(labels=["<<ENT>>"]) == "labels"
    assert refused(labels=[]) == "labels"
    assert refused(labels=LABELS, threshold=1.0) == "threshold"
    assert refused(labels=LABELS, aggregation_strategy="none") == "aggregation_strategy"
    assert refused(labels=LABELS, stride=20) == "stride"


def test_the_command_of_the_page(server: RunningServer) -> None:
    (found,) = requests_page.answers(server.url, "gliner", SPANS)
    assert all({"entity_group", "score", "word", "start", "end"} == set(entity) for entity in found)
