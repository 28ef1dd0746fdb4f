"""The routes of text-embeddings-inference, where they differ from ours: errors, `/predict`, `/decode`, truncation.

Each byte is a token of the fake worker. The embedder reads at most 512 tokens, and the first component of an embedding
is the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import httpx
import numpy as np
import pytest

from server.api.routes.status_routes import InfoAnswer
from tests.wire.conftest import Process

LONG = "x" * 600
TEI = {"x-error-format": "tei"}


def post(client: httpx.Client, path: str, **body: object) -> httpx.Response:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


def test_the_error_format_is_chosen_by_header_or_setting(client: httpx.Client, start: Callable[..., Process]) -> None:
    wrong = {"inputs": LONG, "truncate": False}
    native = client.post("/embed", json=wrong)
    assert native.status_code == 422 and native.json()["error"]["code"] == "context_length_exceeded"
    chosen = client.post("/embed", json=wrong, headers=TEI)
    assert chosen.status_code == 413
    assert chosen.json() == {"error": native.json()["error"]["message"], "error_type": "Validation"}
    unknown = client.post("/embed", json=wrong, headers={"x-error-format": "xml"})
    assert unknown.status_code == 422 and unknown.json()["error"]["param"] == "x-error-format"
    server = start("--dialect-errors", "tei").wait_ready()
    assert server.post("/embed", json=wrong).json() == chosen.json()
    assert server.post("/embed", json=wrong, headers={"x-error-format": "native"}).status_code == 422
    assert server.post("/nowhere", json={}).json()["error_type"] == "Validation"
    assert server.post("/generate", json={"inputs": "a", "parameters": 1}).json()["error_type"] == "validation"


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"inputs": 1}, 422, "Validation"),
        ({"inputs": "a", "unknown": 1}, 422, "Validation"),
        ({"inputs": "a", "model": "nothing"}, 404, "Validation"),
    ],
)
def test_error_types(client: httpx.Client, body: dict, status: int, kind: str) -> None:
    response = client.post("/embed", json=body, headers=TEI)
    fault = client.post("/generate", json={"prompt": "%", "model": "decoder"}, headers=TEI)
    assert (fault.status_code, fault.json()["error_type"]) == (424, "Backend")
    assert (response.status_code, response.json()["error_type"]) == (status, kind)
    assert response.json().keys() == {"error", "error_type"}


def test_predict_takes_pairs_as_the_dialect_does(client: httpx.Client) -> None:
    """A list of two strings is a pair, a list of lists a batch.

    The logit of the label `good` is the number of tokens.
    """

    def good(inputs: object) -> object:
        found = post(client, "/predict", inputs=inputs, raw_scores=True).json()
        many = found if isinstance(found[0], list) else [found]
        counts = [next(label["score"] for label in labels if label["label"] == "good") for labels in many]
        return counts if isinstance(found[0], list) else counts[0]

    assert good("ab") == 3.0 == good(["ab"])
    assert good(["c", "de"]) == 5.0
    assert good([["ab"], ["c", "de"]]) == [3.0, 5.0] and good([["ab"]]) == [3.0]
    for wrong in ([], ["a", "b", "c"], [["a", "b", "c"]], ["a", ["b"]], [1], [["a"]] * 1025):
        response = client.post("/predict", json={"inputs": wrong})
        assert response.status_code == 422 and response.json()["error"]["param"] == "inputs"
    labels = post(client, "/predict", inputs="ab").json()
    assert sum(label["score"] for label in labels) == pytest.approx(1)


def test_decode(client: httpx.Client) -> None:
    assert post(client, "/decode", model="classifier", ids=[100, 101, 1]).json() == ["ab"]
    kept = post(client, "/decode", model="classifier", ids=[[100, 1]], skip_special_tokens=False)
    assert kept.json() == ["a</s>"]


def test_similarity_takes_its_settings_in_parameters(client: httpx.Client) -> None:
    inputs = {"source_sentence": LONG, "sentences": ["b", LONG]}
    plain = post(client, "/similarity", inputs=inputs)
    nested = post(client, "/similarity", inputs=inputs, parameters={"truncation_direction": "Left", "truncate": True})
    assert len(nested.json()) == 2 and plain.headers["x-truncated-inputs"] == "0,2"
    refusal = client.post("/similarity", json={"inputs": inputs, "parameters": {"truncate": False}})
    assert refusal.status_code == 422 and refusal.json()["error"]["code"] == "context_length_exceeded"
    named = {"inputs": inputs, "parameters": {"prompt_name": "query"}, "prompt_name": "query"}
    assert client.post("/similarity", json=named).json()["error"]["param"] == "prompt_name"


def test_truncated_inputs_are_named_in_a_header(client: httpx.Client) -> None:
    def header(path: str, **body: object) -> str | None:
        return post(client, path, **body).headers.get("x-truncated-inputs")

    assert header("/embed", inputs="short") is None
    assert header("/embed", inputs=LONG) == "0"
    assert header("/embed", inputs=["a", LONG, [5] * 513, [5] * 512, LONG]) == "1,2,4"
    assert header("/embed", inputs=LONG, truncation_direction="Left") == "0"
    assert header("/embed_all", inputs=["a", LONG]) == "1"
    assert header("/embed_sparse", inputs=[LONG, "a"]) == "0"
    assert header("/classify", inputs=["a", [LONG, "b"], LONG]) == "1,2"
    assert header("/predict", inputs=[["a"], [LONG]]) == "1"
    assert header("/rerank", query="a", texts=["b", LONG]) == "1"
    assert header("/models/embedder", inputs=LONG) == "0"


def test_sparse_vectors(client: httpx.Client) -> None:
    """The fake worker gives each token its position, counted from 1, as weight."""
    found = post(client, "/embed_sparse", inputs=["ab", "c"]).json()
    assert found == [
        [{"index": 100, "value": 1.0}, {"index": 101, "value": 2.0}, {"index": 1, "value": 3.0}],
        [{"index": 102, "value": 1.0}, {"index": 1, "value": 2.0}],
    ]
    refusal = client.post("/embed_sparse", json={"inputs": "a", "model": "embedder"})
    assert refusal.status_code == 422 and "/embed_sparse" in refusal.json()["error"]["message"]


def test_late_chunking_spans(client: httpx.Client) -> None:
    """The fake worker's embedding of a span is (index of the first token, end index, number of tokens of the text)."""
    text = "One fox. Two cats slept."

    def spans(**body: object) -> list[tuple[int, int, list[float]]]:
        found = post(client, "/embed", model="embedder", normalize=False, **body).json()
        return [(chunk["start"], chunk["end"], chunk["embedding"]) for chunk in found]

    tokens = float(len(text))
    assert spans(inputs=text, chunks="sentences") == [(0, 8, [0, 8, tokens]), (9, 24, [9, 24, tokens])]
    assert spans(inputs=text, chunks=[[4, 7], [0, 24], [5, 6]])[2] == (5, 6, [5, 6, tokens])
    accents = spans(inputs="é fox", chunks=[[0, 1], [2, 5]])
    assert [accent[2][:2] for accent in accents] == [[0, 2], [3, 6]]  # one character of two bytes is two tokens
    prompted = spans(inputs="ab", chunks=[[1, 2]], prompt_name="query")
    assert prompted == [(1, 2, [8, 9, 9])]  # the prompt "query: " precedes the text
    (unit,) = post(client, "/embed", model="embedder", inputs=text, chunks=[[0, 3]], dimensions=2).json()
    assert np.linalg.norm(unit["embedding"]) == pytest.approx(1) and len(unit["embedding"]) == 2


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("chunks", {"chunks": "words"}),
        ("chunks", {"chunks": []}),
        ("chunks", {"chunks": [[0]]}),
        ("chunks", {"chunks": [[0, True]]}),
        ("chunks", {"chunks": [[-1, 2]]}),
        ("chunks", {"chunks": [[2, 2]]}),
        ("chunks", {"chunks": [[0, 99]]}),
        ("chunks", {"chunks": [[0, 1]] * 1025}),
        ("inputs", {"chunks": "sentences", "inputs": ["a", "b"]}),
        ("inputs", {"chunks": "sentences", "inputs": "   "}),
        ("inputs", {"chunks": "sentences", "inputs": "A fox slept. " * 1100}),
        ("inputs", {"chunks": "sentences", "inputs": LONG}),
        ("truncate", {"chunks": "sentences", "truncate": True}),
        ("pooling", {"chunks": "sentences", "pooling": "cls"}),
        ("dimensions", {"chunks": "sentences", "dimensions": 5}),
        ("model", {"chunks": "sentences", "model": "decoder"}),
    ],
)
def test_late_chunking_refuses_by_name(client: httpx.Client, param: str, body: dict) -> None:
    response = client.post("/embed", json={"inputs": "some text", **body})
    assert response.status_code == 422 and response.json()["error"]["param"] == param


def test_info_has_the_fields_of_both_servers(client: httpx.Client) -> None:
    info = client.get("/info").json()
    InfoAnswer.model_validate(info)
    assert info["model_id"] == "decoder" and info["model_pipeline_tag"] == "text-generation"
    assert {model["name"]: model["max_input_tokens"] for model in info["models"]}["translator"] == 256
    embedder = client.get("/models/embedder/info").json()
    assert embedder["model_type"] == {"embedding": {"pooling": "mean"}} and embedder["max_input_length"] == 512
    classifier = client.get("/models/classifier/info").json()["model_type"]["classifier"]
    assert classifier == {
        "id2label": {"0": "bad", "1": "fair", "2": "good"},
        "label2id": {"bad": 0, "fair": 1, "good": 2},
    }
    assert "reranker" in client.get("/models/reranker/info").json()["model_type"]
    assert client.get("/models/nothing/info").status_code == 404


def test_the_tokenizer_routes_of_lm_eval(client: httpx.Client) -> None:
    info = client.get("/tokenizer_info").json()
    assert info["eos_token"] == "</s>" and info["bos_token"] == "<s>" and info["model_max_length"] == 512
    found = post(client, "/tokenize", prompt="ab</s>", add_special_tokens=False).json()
    assert found == {"tokens": [100, 101, 1], "count": 3, "max_model_len": 512}
    assert post(client, "/models/translator/tokenize", prompt="a").json()["tokens"] == [100, 1]
    assert post(client, "/detokenize", tokens=[100, 1]).json() == {"prompt": "a</s>"}
    assert client.get("/models/embedder/tokenizer_info").status_code == 422
    for path, body in (("/tokenize", {"prompt": "a", "inputs": "a"}), ("/detokenize", {"tokens": [1], "ids": [1]})):
        assert client.post(path, json=body).status_code == 422
