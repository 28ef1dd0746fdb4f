"""/fill_mask over a socket.

If the mask is the token with index i, the fake worker proposes letters of the alphabet from index i on as words, with
the scores 1/2, 1/3 and so on. If the request has targets, it proposes the targets in their order.
"""

from __future__ import annotations

import httpx
import pytest

from server.api.dialects.native.answers import FillMaskAnswer
from tests.wire.test_encode import post, refused


def test_words_have_scores_and_sequences(client: httpx.Client) -> None:
    words = post(client, "/fill_mask", inputs="xy<mask>z")
    FillMaskAnswer.model_validate(words)
    assert len(words) == 5
    assert words[:2] == [
        {"score": 0.5, "token": 102, "token_str": "c", "sequence": "xycz"},
        {"score": pytest.approx(1 / 3), "token": 103, "token_str": "d", "sequence": "xydz"},
    ]
    lists = post(client, "/fill_mask", inputs=["<mask>", "x<mask>"], top_k=1)
    FillMaskAnswer.model_validate(lists)
    assert [[word["sequence"] for word in filled] for filled in lists] == [["a"], ["xb"]]


def test_targets_must_be_tokens_of_the_vocabulary(client: httpx.Client) -> None:
    words = post(client, "/fill_mask", inputs="<mask>", targets=["q", "r", "q"])
    assert [word["token_str"] for word in words] == ["q", "r"]
    assert post(client, "/fill_mask", inputs="<mask>", targets="q") == words[:1]
    assert [word["token"] for word in post(client, "/fill_mask", inputs="<mask>", targets=[" ", "</s>"])] == [35, 1]
    assert "targets[1]" in refused(client, "/fill_mask", "targets", inputs="<mask>", targets=["q", "qr"])


@pytest.mark.parametrize("inputs", ["xy", "<mask><mask>", ["<mask>", "x"], "", [], 1])
def test_each_text_needs_one_mask(client: httpx.Client, inputs: object) -> None:
    refused(client, "/fill_mask", "inputs", inputs=inputs)


def test_fill_mask_refuses_invalid_fields(client: httpx.Client) -> None:
    refused(client, "/fill_mask", "inputs", "context_length_exceeded", inputs="a" * 511 + "<mask>")
    assert len(post(client, "/fill_mask", inputs="a" * 510 + "<mask>")) == 5
    refused(client, "/fill_mask", "top_k", inputs="<mask>", top_k=0)
    refused(client, "/fill_mask", "top_k", inputs="<mask>", top_k=257)
    refused(client, "/fill_mask", "targets", inputs="<mask>", targets=[])
    message = refused(client, "/fill_mask", "top_k", "request_too_large", inputs=["<mask>"] * 65, top_k=256)
    assert "16,640 words" in message and "16,384" in message
    assert len(post(client, "/fill_mask", inputs=["<mask>"] * 65, top_k=256, targets=["q"])) == 65
    assert "/embed" in refused(client, "/fill_mask", "model", inputs="<mask>", model="embedder")
