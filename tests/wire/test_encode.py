"""/embed, /embed_all, /classify, /tokenize, /detokenize, /info and the probes over a socket.

The fake worker embeds a text as [number of tokens, sum of ids mod 97, first id, 1]. Its logits for a classified text
are [number of tokens of the second type, 1, number of tokens].
"""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from server.api.dialects.native.answers import (
    ClassifyAnswer,
    DetokenizeAnswer,
    EmbedAllAnswer,
    EmbedAnswer,
    TokenizeAnswer,
)
from server.api.routes.status_routes import InfoAnswer


def post(client: httpx.Client, route: str, **body: object) -> Any:
    response = client.post(route, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(client: httpx.Client, route: str, param: str, code: str = "invalid_request", **body: object) -> str:
    response = client.post(route, json=body)
    assert response.status_code == 422, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    return str(error["message"])


def test_embed_accepts_texts_and_ids_in_one_list(client: httpx.Client) -> None:
    one = post(client, "/embed", inputs="ab", normalize=False)
    EmbedAnswer.model_validate(one)
    assert one == [[2.0, 201 % 97, 100.0, 1.0]]
    assert post(client, "/embed", inputs=[100, 101], normalize=False) == one
    mixed = post(client, "/embed", inputs=["c", [100, 101], "ab"], normalize=False)
    assert mixed == [[1.0, 102 % 97, 102.0, 1.0], *one, *one]


def test_embed_normalizes_and_cuts_dimensions(client: httpx.Client) -> None:
    (unit,) = post(client, "/embed", inputs="ab")
    assert math.isclose(math.hypot(*unit), 1.0, rel_tol=1e-6)
    (short,) = post(client, "/embed", inputs="ab", dimensions=2)
    assert short == pytest.approx([2 / math.hypot(2, 7), 7 / math.hypot(2, 7)])
    assert post(client, "/embed", inputs="ab", dimensions=2, normalize=False) == [[2.0, 7.0]]
    assert "4" in refused(client, "/embed", "dimensions", inputs="ab", dimensions=5)


def test_embed_truncates_unless_the_request_forbids_it(client: httpx.Client) -> None:
    long = "a" * 511 + "bc"
    assert post(client, "/embed", inputs=long, normalize=False)[0][:3] == [512.0, (511 * 100 + 101) % 97, 100.0]
    left = post(client, "/embed", inputs=long, normalize=False, truncation_direction="left")[0]
    assert left[:3] == [512.0, (510 * 100 + 203) % 97, 100.0]
    refused(client, "/embed", "inputs", "context_length_exceeded", inputs=long, truncate=False)
    refused(client, "/embed", "inputs", "context_length_exceeded", inputs=[100] * 513, truncate=False)
    assert post(client, "/embed", inputs=[100] * 513, normalize=False)[0][0] == 512.0


def test_embed_all_returns_a_vector_per_token(client: httpx.Client) -> None:
    found = post(client, "/embed_all", inputs=["ab", [100], "c"], normalize=False)
    EmbedAllAnswer.model_validate(found)
    assert found == [
        [[100.0, 0.0, 2.0, 1.0], [101.0, 1.0, 2.0, 1.0]],
        [[100.0, 0.0, 1.0, 1.0]],
        [[102.0, 0.0, 1.0, 1.0]],
    ]
    assert post(client, "/embed_all", inputs="ab", normalize=False) == found[:1]
    ((one, _),) = post(client, "/embed_all", inputs="ab")
    assert one == pytest.approx([value / math.hypot(*found[0][0]) for value in found[0][0]])
    ((one, other),) = post(client, "/embed_all", inputs="ab", dimensions=2)
    assert one == [1.0, 0.0]
    assert other == pytest.approx([101 / math.hypot(101, 1), 1 / math.hypot(101, 1)])
    assert post(client, "/embed_all", inputs="ab", dimensions=1, normalize=False) == [[[100.0], [101.0]]]


def test_embed_all_truncates_and_refuses_invalid_fields(client: httpx.Client) -> None:
    long = "a" * 511 + "bc"
    (right,) = post(client, "/embed_all", inputs=long, normalize=False)
    (left,) = post(client, "/embed_all", inputs=long, normalize=False, truncation_direction="left")
    assert [len(right), len(left)] == [512, 512] and [right[-1][0], left[-1][0]] == [101.0, 102.0]
    refused(client, "/embed_all", "inputs", "context_length_exceeded", inputs=long, truncate=False)
    refused(client, "/embed_all", "pooling", inputs="a", pooling="mean")
    refused(client, "/embed_all", "dimensions", inputs="a", dimensions=5)
    refused(client, "/embed_all", "prompt_name", inputs="a", prompt_name="nothing")


def test_embed_prompts_come_from_the_checkpoint(client: httpx.Client) -> None:
    prompted = post(client, "/embed", inputs="ab", prompt_name="query")
    assert prompted == post(client, "/embed", inputs="query: ab")
    assert "passage, query" in refused(client, "/embed", "prompt_name", inputs="ab", prompt_name="nothing")
    refused(client, "/embed", "prompt_name", inputs=[100], prompt_name="query")


def test_a_list_of_1024_is_one_request(client: httpx.Client) -> None:
    vectors = post(client, "/embed", inputs=[chr(97 + i % 26) * (1 + i % 7) for i in range(1024)], normalize=False)
    assert [vector[0] for vector in vectors] == [float(1 + i % 7) for i in range(1024)]
    assert "1024" in refused(client, "/embed", "inputs", inputs=["a"] * 1025)


@pytest.mark.parametrize("inputs", ["", [], [""], [[]], [259], [1.5], [True], [["a"]], None, {"text": "a"}])
def test_embed_refuses_invalid_inputs(client: httpx.Client, inputs: object) -> None:
    refused(client, "/embed", "inputs", inputs=inputs)


@pytest.mark.parametrize(
    "field", [{"pooling": "median"}, {"truncation_direction": "up"}, {"normalize": 1}, {"dimensions": 0}]
)
def test_embed_refuses_invalid_fields(client: httpx.Client, field: dict) -> None:
    refused(client, "/embed", next(iter(field)), inputs="a", **field)


@pytest.mark.parametrize("route", ["/classify", "/predict"])
def test_classify_orders_labels_by_score(client: httpx.Client, route: str) -> None:
    # "ab" and the end token are 3 tokens: logits bad 0, fair 1, good 3
    labels = post(client, route, inputs="ab")
    ClassifyAnswer.model_validate(labels)
    total = 1 + math.e + math.exp(3)
    assert [(label["label"], pytest.approx(label["score"])) for label in labels] == [
        ("good", math.exp(3) / total),
        ("fair", math.e / total),
        ("bad", 1 / total),
    ]


def test_classify_functions_and_top_k(client: httpx.Client) -> None:
    assert post(client, "/classify", inputs="ab", raw_scores=True)[0] == {"label": "good", "score": 3.0}
    assert post(client, "/classify", inputs="ab", function_to_apply="none")[2] == {"label": "bad", "score": 0.0}
    sigmoid = post(client, "/classify", inputs="ab", function_to_apply="sigmoid", top_k=1)
    assert sigmoid == [{"label": "good", "score": pytest.approx(1 / (1 + math.exp(-3)))}]
    refused(client, "/classify", "raw_scores", inputs="ab", raw_scores=True, function_to_apply="softmax")
    refused(client, "/classify", "top_k", inputs="ab", top_k=0)


def test_classify_lists_and_pairs(client: httpx.Client) -> None:
    answers = post(client, "/classify", inputs=["ab", ["c", "de"], ["f"]], raw_scores=True)
    # a pair "c</s>de</s>" has 5 tokens, of which 3 have the second type
    by_label = [{label["label"]: label["score"] for label in answer} for answer in answers]
    assert by_label == [
        {"bad": 0.0, "fair": 1.0, "good": 3.0},
        {"bad": 3.0, "fair": 1.0, "good": 5.0},
        {"bad": 0.0, "fair": 1.0, "good": 2.0},
    ]
    for wrong in ([["a", "b", "c"]], [1], [["a", 1]], [[]]):
        refused(client, "/classify", "inputs", inputs=wrong)


def test_a_long_pair_loses_tokens_of_its_longer_text(client: httpx.Client) -> None:
    (answer,) = post(client, "/classify", inputs=[["a" * 100, "b" * 600]], raw_scores=True)
    by_label = {label["label"]: label["score"] for label in answer}
    assert by_label["good"] == 512.0
    assert by_label["bad"] == 512 - 101  # the first text and its end token are kept
    (both,) = post(client, "/classify", inputs=[["a" * 600, "b" * 600]], raw_scores=True)
    assert {label["label"]: label["score"] for label in both} == {"good": 512.0, "bad": 256.0, "fair": 1.0}
    refused(client, "/classify", "inputs", "context_length_exceeded", inputs="a" * 600, truncate=False)


def test_tokenize_and_detokenize(client: httpx.Client) -> None:
    tokens = post(client, "/tokenize", model="classifier", inputs=["aé", "b"])
    TokenizeAnswer.model_validate(tokens)
    assert tokens[1] == [
        {"id": 101, "text": "b", "start": 0, "end": 1, "special": False, "stop": 1},
        {"id": 1, "text": "</s>", "start": 0, "end": 0, "special": True, "stop": None},
    ]
    assert [(token["start"], token["end"]) for token in tokens[0]] == [(0, 1), (1, 2), (1, 2), (0, 0)]
    bare = post(client, "/tokenize", model="classifier", inputs="b", add_special_tokens=False)
    assert [token["id"] for token in bare[0]] == [101]
    ids = [[token["id"] for token in text] for text in tokens]
    texts = post(client, "/detokenize", model="classifier", ids=ids)
    DetokenizeAnswer.model_validate(texts)
    assert texts == ["aé", "b"]
    assert post(client, "/detokenize", model="classifier", ids=[101, 1], skip_special_tokens=False) == ["b</s>"]
    assert post(client, "/detokenize", ids=[[], [101]]) == ["", "b"]
    refused(client, "/detokenize", "ids", ids=[259])
    refused(client, "/detokenize", "ids", ids="a")
    refused(client, "/tokenize", "inputs", inputs=[1])


def test_info_describes_the_models(client: httpx.Client) -> None:
    info = InfoAnswer.model_validate_json(client.get("/info").content)
    assert [model.name for model in info.models][:2] == ["decoder", "embedder"]
    by_name = {model.name: model for model in info.models}
    assert by_name["translator"].languages == ["en-de"] and by_name["translator"].source_tokens == 256
    assert by_name["classifier"].labels == ["bad", "fair", "good"] and by_name["classifier"].routes == ["/classify"]
    assert (info.device, info.limits.max_items) == ("cpu", 1024)


def test_probes(client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready"}
