"""The routes of text-generation-inference over a socket, byte by byte: events, answers and errors.

The fake worker repeats the prompt and then ends the text. Each token has log-probability -0.5; when sampling, the
prompt is rotated by as many bytes as the seed says, which are subtracted from the log-probability.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from tests.wire.conftest import Process

SAMPLED = {"do_sample": True, "seed": 0}


def generate(client: httpx.Client, inputs: str = "ab", **parameters: object) -> dict:
    response = client.post("/generate", json={"inputs": inputs, "model": "decoder", "parameters": parameters})
    assert response.status_code == 200, response.text
    return response.json()


def stream(client: httpx.Client, path: str = "/generate_stream", **body: object) -> list[dict]:
    response = client.post(path, json={"inputs": "ab", "model": "decoder", **body})
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    assert "\r" not in response.text and response.text.endswith("\n\n")
    blocks = response.text.split("\n\n")[:-1]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def token(token_id: int, text: str, logprob: float = -0.5) -> dict:
    return {"id": token_id, "text": text, "logprob": logprob, "special": token_id < 3}


def test_the_whole_answer(client: httpx.Client) -> None:
    assert generate(client) == {"generated_text": "ab"}
    assert generate(client, return_full_text=True) == {"generated_text": "abab"}
    assert generate(client, max_new_tokens=1) == {"generated_text": "a"}
    assert generate(client, details=True, seed=5) == {
        "generated_text": "ab",
        "details": {
            "finish_reason": "eos_token",
            "generated_tokens": 3,
            "seed": 5,
            "prefill": [],
            "tokens": [token(100, "a"), token(101, "b"), token(1, "</s>")],
        },
    }


def test_without_max_new_tokens_there_are_one_hundred(client: httpx.Client) -> None:
    assert generate(client, inputs="x" * 150) == {"generated_text": "x" * 100}


def test_details_of_the_prompt_and_top_tokens(client: httpx.Client) -> None:
    details = generate(client, details=True, decoder_input_details=True, top_n_tokens=2, max_new_tokens=1)["details"]
    assert details["finish_reason"] == "length"
    assert [detail["text"] for detail in details["prefill"]] == ["a", "b"] and details["prefill"][0]["logprob"] is None
    assert details["top_tokens"] == [[token(100, "a"), token(101, "b", -1.5)]]


def test_one_event_per_token_and_the_text_in_the_last(client: httpx.Client) -> None:
    events = stream(client, parameters={"details": True, "seed": 3})
    rest = {"generated_text": None, "details": None}
    assert events == [
        {"index": 1, "token": token(100, "a"), **rest},
        {"index": 2, "token": token(101, "b"), **rest},
        {
            "index": 3,
            "token": token(1, "</s>"),
            "generated_text": "ab",
            "details": {"finish_reason": "eos_token", "generated_tokens": 3, "seed": 3, "input_length": 2},
        },
    ]
    again = stream(client, "/generate", stream=True, parameters={"details": True, "seed": 3})
    assert again == events
    assert stream(client)[-1]["details"] is None


def test_texts_of_tokens_join_to_the_text_also_of_parts_of_characters(client: httpx.Client) -> None:
    for inputs in ("naïve 😀 text", "x€" * 9):
        events = stream(client, inputs=inputs, parameters={"max_new_tokens": 200})
        texts = [event["token"]["text"] for event in events if not event["token"]["special"]]
        assert "".join(texts) == inputs == events[-1]["generated_text"]
        assert len(texts) == len(inputs.encode())
    cut = stream(client, inputs="a€", parameters={"max_new_tokens": 2})  # ends inside of a character
    assert "".join(event["token"]["text"] for event in cut) == cut[-1]["generated_text"]


def test_a_stop_string_ends_the_text_and_stays_in_it(client: httpx.Client) -> None:
    answer = generate(client, inputs="hello world", stop=["o w"], details=True)
    assert answer["generated_text"] == "hello w" and answer["details"]["finish_reason"] == "stop_sequence"
    events = stream(client, inputs="hello world", parameters={"stop": ["o w", "zz"]})
    assert "".join(event["token"]["text"] for event in events) == "hello w" == events[-1]["generated_text"]
    assert len(events) == 7


def test_the_best_of_several(client: httpx.Client) -> None:
    """A larger seed lowers the log-probability of the fake worker, so the answer with seed 0 is the best."""
    answer = generate(client, inputs="abc", best_of=3, details=True, **SAMPLED)
    assert answer["generated_text"] == "abc" and answer["details"]["seed"] == 0
    others = answer["details"]["best_of_sequences"]
    assert [(other["generated_text"], other["seed"]) for other in others] == [("bca", 1), ("cab", 2)]
    assert generate(client, inputs="abc", best_of=2, **SAMPLED) == {"generated_text": "abc"}


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"watermark": True}, "watermark"),
        ({"temperature": 0}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 1.5}, "top_p"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 17, **SAMPLED}, "best_of"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"unknown": 1}, "unknown"),
        ({"grammar": {"type": "yaml", "value": ""}}, "grammar"),
        ({"grammar": {"type": "json", "value": "{"}}, "grammar"),
        ({"truncate": 0}, "truncate"),
        ({"top_n_tokens": 21}, "top_n_tokens"),
        ({"repetition_penalty": float("1e9")}, "repetition_penalty"),
    ],
)
def test_wrong_parameters_are_refused_by_name(client: httpx.Client, parameters: dict, field: str) -> None:
    for path in ("/generate", "/generate_stream", "/models/decoder"):
        response = client.post(path, json={"inputs": "a", "model": "decoder", "parameters": parameters})
        error = response.json()
        assert response.status_code == 422 and error.keys() == {"error", "error_type"}
        assert error["error_type"] == "validation" and field in error["error"]


def test_errors_have_the_types_and_statuses_of_the_dialect(client: httpx.Client) -> None:
    def refused(body: dict, path: str = "/generate") -> tuple[int, str]:
        response = client.post(path, json={"inputs": "a", "model": "decoder", **body})
        return response.status_code, response.json()["error_type"]

    assert refused({"inputs": "%"}) == (424, "generation")
    assert refused({"inputs": "x" * 600}) == (422, "validation")
    assert refused({"model": "nothing"}) == (404, "validation")
    assert refused({"model": "embedder"}) == (422, "validation")
    assert refused({"parameters": {"adapter_id": "nothing"}}) == (404, "validation")
    assert refused({"stream": False}, "/generate_stream") == (422, "validation")
    assert refused({"parameters": {"decoder_input_details": True}}, "/generate_stream") == (422, "validation")
    both = client.post("/generate", json={"inputs": "a", "prompt": "a"})
    assert both.status_code == 422 and "different dialects" in both.json()["error"]["message"]


def test_a_fault_after_the_first_token_is_an_error_event(client: httpx.Client, shared_server: Process) -> None:
    body = {"inputs": "ab&cd", "model": "decoder", "timeout_ms": 1500}
    response = client.post("/generate_stream", json=body)
    events = [json.loads(block.removeprefix("data: ")) for block in response.text.split("\n\n")[:-1]]
    assert [event["token"]["text"] for event in events[:-1]] == ["a", "b"]
    assert events[-1].keys() == {"error", "error_type"} and events[-1]["error_type"] == "incomplete_generation"
    whole = client.post("/generate", json=body)
    assert whole.status_code == 504 and whole.json()["error_type"] == "incomplete_generation"


def test_a_missing_key_is_refused_in_the_shape_of_the_dialect(start: Callable[..., Process]) -> None:
    server = start(environment={"TRIPTYCH_API_KEYS": "the-key"}).wait_ready()
    for path, key in (("/generate_stream", "error_type"), ("/models/decoder", "error")):
        refusal = server.post(path, json={"inputs": "a"})
        assert refusal.status_code == 401 and key in refusal.json()
        allowed = server.post(path, json={"inputs": "a"}, headers={"authorization": "Bearer the-key"})
        assert allowed.status_code == 200
