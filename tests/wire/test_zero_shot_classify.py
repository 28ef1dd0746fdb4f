"""`/zero_shot_classify` over a socket.

The fake judge's logits for a pair: contradiction is the number of the second text's tokens, its end included, neutral
is one, entailment the number of all tokens. A token is a letter, and two ends stand around the texts.
"""

from __future__ import annotations

import math

import httpx
import numpy as np
import pytest

from server.api.dialects.native.answers import ClassifyAnswer
from server.operations.entailment import entailment
from tests.wire.test_encode import post, refused

LABELS = ["ab", "abcd", "c"]


def test_labels_share_one_distribution(client: httpx.Client) -> None:
    found = post(client, "/zero_shot_classify", inputs="text", candidate_labels=LABELS)
    ClassifyAnswer.model_validate(found)
    powers = np.exp([2.0, 4.0, 1.0])
    assert [one["label"] for one in found] == ["abcd", "ab", "c"]
    assert [one["score"] for one in found] == pytest.approx(sorted(powers / powers.sum(), reverse=True), rel=1e-5)


def test_each_label_alone(client: httpx.Client) -> None:
    """Entailment is ahead of contradiction by the tokens of the first text and the one before it."""
    found = post(client, "/zero_shot_classify", inputs="text", candidate_labels=LABELS, multi_label=True)
    first = [one["score"] for one in found]
    assert [one["label"] for one in found] == LABELS and len(set(first)) == 1 and 0.98 < first[0] < 1
    (single,) = post(client, "/zero_shot_classify", inputs="text", candidate_labels=["ab"])
    assert single["score"] == pytest.approx(first[0])


def test_a_list_gives_a_list_and_a_template_its_own_words(client: httpx.Client) -> None:
    texts = ["text", "é" * 30]
    found = post(client, "/zero_shot_classify", inputs=texts, candidate_labels=LABELS, hypothesis_template="{}")
    assert found == [
        post(client, "/zero_shot_classify", inputs=text, candidate_labels=LABELS, hypothesis_template="{}")
        for text in texts
    ]
    ClassifyAnswer.model_validate(found)
    long = post(
        client, "/zero_shot_classify", inputs="text", candidate_labels=["a"], hypothesis_template="{}" + "b" * 90
    )
    assert len(long) == 1


def test_a_long_text_is_cut_and_a_hypothesis_is_not(client: httpx.Client) -> None:
    asked = {"candidate_labels": ["a", "ab"], "multi_label": True}
    found = post(client, "/zero_shot_classify", inputs="x" * 5000, **asked)
    hypothesis = {label: len("This example is .") + len(label) + 1 for label in ("a", "ab")}
    for one in found:
        assert one["score"] == pytest.approx(1 / (1 + math.exp(hypothesis[one["label"]] - 512)))
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
def test_zero_shot_classify_refuses(client: httpx.Client, param: str, body: dict) -> None:
    found = client.post("/zero_shot_classify", json=body)
    assert found.status_code == 422 and found.json()["error"]["param"].startswith(param)


def test_only_a_judge_lists_the_route(client: httpx.Client) -> None:
    routes = {model["name"]: model["routes"] for model in client.get("/info").json()["models"]}
    assert routes["judge"] == ["/classify", "/zero_shot_classify"]
    assert "/zero_shot_classify" not in routes["classifier"] + routes["reranker"]


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (["contradiction", "neutral", "entailment"], (2, 0)),
        (["ENTAILMENT", "NEUTRAL", "CONTRADICTION"], (0, 2)),
        (["contradiction", "entailment", "neutral"], (1, 0)),
        (["neutral", "contradiction", "entailment"], (2, 1)),
        (["entailment", "not_entailment"], (0, 1)),
        (["not_entailment", "entailment"], (1, 0)),
        (["LABEL_0", "LABEL_1", "LABEL_2"], None),
        (["entailment"], None),
        ([], None),
    ],
)
def test_classes_are_found_by_name(labels: list[str], found: tuple[int, int] | None) -> None:
    assert entailment(labels) == found
