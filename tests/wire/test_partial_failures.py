"""A part of an answer that fails: the other parts are answered. If all parts fail, the request fails.

In the fake engine a text that begins with `%` fails, and one that begins with `&` gets no token.
"""

from __future__ import annotations

import httpx
import pytest

from server.api.dialects.native.answers import GenerateAnswer, TranslateAnswer
from tests.wire.conftest import parse_events

FAILURE = {
    "message": "non-finite logits in this row",
    "type": "server_error",
    "param": None,
    "code": "engine_error",
    "reason": "",  # absent from the answer, which is read with the schema
}


def test_one_prompt_of_several(client: httpx.Client) -> None:
    body = {"model": "decoder", "prompt": ["abc", "%de", "xyz"], "return_token_ids": True, "max_new_tokens": 8}
    response = client.post("/generate", json=body)
    assert response.status_code == 200
    answer = GenerateAnswer.model_validate_json(response.content, strict=True).model_dump()
    assert [(c["text"], c["finish_reason"], c["prompt_index"]) for c in answer["choices"]] == [
        ("abc", "stop", 0),
        ("", "error", 1),
        ("xyz", "stop", 2),
    ]
    assert [choice["error"] for choice in answer["choices"]] == [None, FAILURE, None]
    assert answer["usage"]["completion_tokens"] == 8
    raw = response.json()["choices"]
    assert ["error" in choice for choice in raw] == [False, True, False]
    assert "reason" not in raw[1]["error"]
    events = parse_events(client.post("/generate", json={**body, "stream": True}).text)
    assert [name for name, _ in events if name != "token"] == ["done"]
    assert events[-1][1]["choices"] == raw
    assert {data["index"] for name, data in events if name == "token"} == {0, 2}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("prompt", ["%", ["%a"], ["%a", "%b"]])
def test_without_another_part_the_request_fails(client: httpx.Client, streams: bool, prompt: object) -> None:
    response = client.post("/generate", json={"model": "decoder", "prompt": prompt, "stream": streams})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_error")


def test_the_best_of_those_that_did_not_fail(client: httpx.Client) -> None:
    body = {"model": "decoder", "prompt": ["abcd", "%"], "n": 2, "best_of": 3, "temperature": 1.0, "seed": 0}
    choices = client.post("/generate", json=body).json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "stop", "error", "error"]
    assert [choice["text"] for choice in choices[:2]] == ["abcd", "bcda"]


def test_beams_and_log_probabilities_of_prompts(client: httpx.Client) -> None:
    body = {"model": "decoder", "prompt": ["abc", "%d"], "num_beams": 2, "num_return_sequences": 2}
    body |= {"prompt_logprobs": True, "logprobs": True, "echo": True, "max_new_tokens": 8}
    response = client.post("/generate", json=body)
    choices = GenerateAnswer.model_validate_json(response.content, strict=True).model_dump()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "stop", "error", "error"]
    assert [choice["prompt_logprobs"] is None for choice in choices] == [False, False, True, True]
    assert choices[2]["logprobs"] == []


def test_a_prompt_without_a_token_at_the_deadline(client: httpx.Client) -> None:
    body = {"model": "decoder", "prompt": ["abc", "&"], "timeout_ms": 400}
    choices = client.post("/generate", json=body).json()["choices"]
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [("abc", "stop"), ("", "timeout")]
    assert choices[1]["error"]["code"] == "timeout"


def test_one_text_of_several_translations(client: httpx.Client) -> None:
    """A text with a failing sentence fails. A stream may already have sent the sentences before it."""
    body = {"model": "translator", "inputs": ["Ab. Cd.", "Ef. %gh. Hi.", ""], "return_token_ids": True}
    body |= {"logprobs": True, "return_attention": False, "num_alternatives": 1}
    response = client.post("/translate", json=body)
    assert response.status_code == 200
    translations = TranslateAnswer.model_validate_json(response.content, strict=True).model_dump()["translations"]
    assert [translation["finish_reason"] for translation in translations] == ["stop", "error", "stop"]
    assert [translation["error"] for translation in translations] == [None, FAILURE, None]
    assert (translations[0]["text"], translations[1]["text"], translations[1]["score"]) == ("Ab. Cd.", "", None)
    assert translations[1]["alternatives"] == translations[1]["token_ids"] == []
    events = parse_events(client.post("/translate", json={**body, "stream": True}).text)
    assert events[-1][0] == "done"
    sent = "".join(data["text"] for name, data in events if name == "token" and data["index"] == 1)
    assert events[-1][1]["translations"][1]["text"] == sent
    alone = client.post("/translate", json={**body, "inputs": "Ef. %gh. Hi."})
    assert (alone.status_code, alone.json()["error"]["code"]) == (500, "engine_error")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "decoder", "prompt": ["abc", "%"]}),
        ("/translate", {"q": ["Ab.", "%kb."], "source": "en", "target": "de"}),
        ("/v2/translate", {"text": ["Ab.", "%kb."], "source_lang": "EN", "target_lang": "DE"}),
    ],
)
def test_answers_without_a_place_for_an_error_fail_as_a_whole(client: httpx.Client, path: str, body: dict) -> None:
    response = client.post(path, json=body)
    assert response.status_code >= 500, response.text
