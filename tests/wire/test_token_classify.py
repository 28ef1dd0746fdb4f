"""/token_classify over a socket.

Each byte is a token. The fake worker labels the capital letter `A` as B-UP, other capitals as I-UP, and the rest as O.
The logit of a token's label is the number of tokens in the text, including the end token.
"""

from __future__ import annotations

import math

import httpx
import pytest

from server.api.dialects.native.answers import TokenClassifyAnswer
from tests.wire.test_encode import post, refused


def score(tokens: int) -> object:
    """The probability of a label whose logit is `tokens`. The logits of the two other labels are 0."""
    return pytest.approx(math.exp(tokens) / (math.exp(tokens) + 2))


@pytest.mark.parametrize("route", ["/token_classify", "/ner"])
def test_entities_have_offsets_in_the_original_text(client: httpx.Client, route: str) -> None:
    found = post(client, route, inputs="é XY AZA")
    TokenClassifyAnswer.model_validate(found)
    # ten tokens: nine bytes (é has two) and the end token
    assert found == [
        {"entity_group": "UP", "score": score(10), "word": "XY", "start": 2, "end": 4},
        {"entity_group": "UP", "score": score(10), "word": "AZ", "start": 5, "end": 7},
        {"entity_group": "UP", "score": score(10), "word": "A", "start": 7, "end": 8},
    ]
    assert post(client, route, inputs=["é XY AZA", "none", ""]) == [found, [], []]


def test_aggregation_strategies(client: httpx.Client) -> None:
    found = post(client, "/token_classify", inputs="x AZ", aggregation_strategy="none")
    TokenClassifyAnswer.model_validate(found)
    assert found == [
        {"entity": "B-UP", "score": score(5), "index": 2, "word": "A", "start": 2, "end": 3},
        {"entity": "I-UP", "score": score(5), "index": 3, "word": "Z", "start": 3, "end": 4},
    ]
    # a word gets the label of its first token, or the label with the highest average score
    first = post(client, "/token_classify", inputs="Zo oZ", aggregation_strategy="first")
    assert [(entity["start"], entity["end"]) for entity in first] == [(0, 2)]
    most = post(client, "/token_classify", inputs="ZZo ooZ", aggregation_strategy="average")
    assert [(entity["start"], entity["end"]) for entity in most] == [(0, 3)]
    assert most[0]["score"] < first[0]["score"]


def test_long_texts_are_split_into_overlapping_windows(client: httpx.Client) -> None:
    text = "".join("aBC"[i % 3] if i in (1, 2, 505, 506, 910, 911) else "o" for i in range(1200))
    places = [i for i in range(1200) if text[i].isupper()]
    found = post(client, "/token_classify", inputs=["BC", text, "o"])
    assert [len(entities) for entities in found] == [1, len({i for i in places if i - 1 not in places}), 0]
    assert {i for entity in found[1] for i in range(entity["start"], entity["end"])} == set(places)
    single = post(client, "/token_classify", inputs=text, aggregation_strategy="none", stride=0)
    assert [entity["start"] for entity in single] == [entity["index"] for entity in single] == places


def test_token_classify_refuses_invalid_fields(client: httpx.Client) -> None:
    assert "511" in refused(client, "/token_classify", "stride", inputs="a", stride=511)
    assert post(client, "/token_classify", inputs="A" + "o" * 600, stride=510) == [
        {"entity_group": "UP", "score": score(512), "word": "A", "start": 0, "end": 1}
    ]
    refused(client, "/token_classify", "stride", inputs="a", stride=-1)
    refused(client, "/token_classify", "aggregation_strategy", inputs="a", aggregation_strategy="some")
    refused(client, "/token_classify", "inputs", inputs=[])
    refused(client, "/token_classify", "inputs", inputs=[[1]])
    assert "/token_classify" in refused(client, "/embed", "model", inputs="a", model="tagger")
