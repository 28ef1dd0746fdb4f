"""`allowed_sequences` and wide beams over a socket: what is accepted. An error names the refused field."""

from __future__ import annotations

import httpx
import pytest

TWO = ["ab", [100, 101, 102]]


def post(client: httpx.Client, path: str, **body: object) -> httpx.Response:
    return client.post(path, json=body)


@pytest.mark.parametrize(
    "more, param",
    [
        ({"stop": ["x"]}, "allowed_sequences"),
        ({"stop_token_ids": [5]}, "allowed_sequences"),
        ({"ignore_eos": True}, "allowed_sequences"),
        ({"response_format": {"type": "choice", "choices": ["a"]}}, "allowed_sequences"),
        ({"allowed_sequences": [""]}, "allowed_sequences"),
        ({"allowed_sequences": [[]]}, "allowed_sequences"),
        ({"allowed_sequences": [5, 6]}, "allowed_sequences"),
        ({"allowed_sequences": []}, "allowed_sequences"),
        ({"allowed_sequences": [[1 << 20]]}, "allowed_sequences"),
        ({"num_beams": 513}, "num_beams"),
        ({"num_return_sequences": 513}, "num_return_sequences"),
    ],
)
def test_refused_by_name(client: httpx.Client, more: dict[str, object], param: str) -> None:
    body = {"model": "decoder", "prompt": "ab", "allowed_sequences": TWO} | more
    answer = post(client, "/generate", **body)
    assert answer.status_code == 422 and answer.json()["error"]["param"] == param, answer.text


@pytest.mark.parametrize("more", [{"split_sentences": True}, {"format": "html"}, {"glossary": {"a": "b"}}])
def test_refused_for_translations(client: httpx.Client, more: dict[str, object]) -> None:
    answer = post(client, "/translate", model="translator", inputs="ab", allowed_sequences=TWO, **more)
    assert answer.status_code == 422, answer.text
    assert "allowed_sequences" in answer.json()["error"]["message"]


@pytest.mark.parametrize("more", [{}, {"num_beams": 512, "num_return_sequences": 40, "max_new_tokens": 1}])
def test_accepted(client: httpx.Client, more: dict[str, object]) -> None:
    answer = post(client, "/generate", model="decoder", prompt="a", allowed_sequences=TWO, **more)
    assert answer.status_code == 200 or "KV blocks" in answer.json()["error"]["message"], answer.text


def test_more_beams_than_the_cache_has_blocks_are_not_blamed_on_the_prompt(client: httpx.Client) -> None:
    """The error must not be `context_length_exceeded`, after which a client would shorten its prompt without end."""
    for beams, code in ((64, 200), (65, "request_too_large")):
        body = {"model": "decoder", "prompt": "a", "num_beams": beams, "max_new_tokens": 1, "allowed_sequences": TWO}
        answer = post(client, "/generate", **body)
        if code == 200:
            assert answer.status_code == 200, answer.text
            continue
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (422, code, "num_beams"), answer.text
        assert "Lower `num_beams`" in error["message"]
