"""/zero_shot_classify over a socket.

The fake worker's model `judge` gives a pair of texts these logits: for contradiction the number of tokens of the second
text, for neutral 1, for entailment the number of tokens of both texts. Each byte is a token, and so is the end of each
text.
"""

from __future__ import annotations

import math

import httpx
import numpy as np
import pytest

from server.api.dialects.native.answers import ZeroShotClassifyAnswer
from tests.wire.test_encode import post, refused

LABELS = ["ab", "abcd", "c"]


def test_scores_of_all_labels_add_up_to_one(client: httpx.Client) -> None:
    found = post(client, "/zero_shot_classify", inputs="text", candidate_labels=LABELS)
    ZeroShotClassifyAnswer.model_validate(found)
    powers = np.exp([2.0, 4.0, 1.0])
    assert found["labels"] == ["abcd", "ab", "c"]
    assert found["scores"] == pytest.approx(sorted(powers / powers.sum(), reverse=True), rel=1e-5)


def test_multi_label_scores_each_label_separately(client: httpx.Client) -> None:
    """A score depends only on the difference of two logits, which here is the number of tokens of the text.

    So all labels get the same score.
    """
    found = post(client, "/zero_shot_classify", inputs="text", candidate_labels=LABELS, multi_label=True)
    first = found["scores"]
    assert found["labels"] == LABELS and len(set(first)) == 1 and 0.98 < first[0] < 1
    single = post(client, "/zero_shot_classify", inputs="text", candidate_labels=["ab"])
    assert single == {"labels": ["ab"], "scores": [pytest.approx(first[0])]}


def test_lists_of_texts_and_templates(client: httpx.Client) -> None:
    texts = ["text", "é" * 30]
    found = post(client, "/zero_shot_classify", inputs=texts, candidate_labels=LABELS, hypothesis_template="{}")
    assert found == [
        post(client, "/zero_shot_classify", inputs=text, candidate_labels=LABELS, hypothesis_template="{}")
        for text in texts
    ]
    ZeroShotClassifyAnswer.model_validate(found)
    long = post(
        client, "/zero_shot_classify", inputs="text", candidate_labels=["a"], hypothesis_template="{}" + "b" * 90
    )
    assert len(long["scores"]) == 1


def test_a_long_text_is_truncated_but_never_the_hypothesis(client: httpx.Client) -> None:
    body = {"candidate_labels": ["a", "ab"], "multi_label": True}
    found = post(client, "/zero_shot_classify", inputs="x" * 5000, **body)
    hypothesis = {label: len("This example is .") + len(label) + 1 for label in ("a", "ab")}
    for label, score in zip(found["labels"], found["scores"], strict=True):
        assert score == pytest.approx(1 / (1 + math.exp(hypothesis[label] - 512)))
    code = "context_length_exceeded"
    body = {"candidate_labels": ["a"], "hypothesis_template": "{}" + "b" * 600, "inputs": "text"}
    refused(client, "/zero_shot_classify", "candidate_labels", code, **body)


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("inputs", {"candidate_labels": ["a"]}),
        ("inputs", {"candidate_labels": ["a"], "inputs": [["a", "b"]]}),
        ("candidate_labels", {"inputs": "a"}),
        ("candidate_labels", {"inputs": "a", "candidate_labels": []}),
        ("candidate_labels", {"inputs": "a", "candidate_labels": "b,c"}),
        ("candidate_labels", {"inputs": ["a"] * 600, "candidate_labels": ["b", "c"]}),
        ("hypothesis_template", {"inputs": "a", "candidate_labels": ["b"], "hypothesis_template": "no hole"}),
        ("hypothesis_template", {"inputs": "a", "candidate_labels": ["b"], "hypothesis_template": "{} and {}"}),
        ("hypothesis_template", {"inputs": "a", "candidate_labels": ["b"], "hypothesis_template": "{0.__class__}{}"}),
        ("multi_label", {"inputs": "a", "candidate_labels": ["b"], "multi_label": 1}),
        ("model", {"inputs": "a", "candidate_labels": ["b"], "model": "classifier"}),
        ("model", {"inputs": "a", "candidate_labels": ["b"], "model": "embedder"}),
    ],
)
def test_zero_shot_classify_refuses_invalid_fields(client: httpx.Client, param: str, body: dict) -> None:
    response = client.post("/zero_shot_classify", json=body)
    assert response.status_code == 422 and response.json()["error"]["param"].startswith(param)


def test_only_entailment_models_list_the_route(client: httpx.Client) -> None:
    routes = {model["name"]: model["routes"] for model in client.get("/info").json()["models"]}
    assert routes["judge"] == ["/classify", "/zero_shot_classify"]
    assert "/zero_shot_classify" not in routes["classifier"] + routes["reranker"]
