"""`/generate` over a socket. The fake engine repeats the prompt and then ends the text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from server.api.dialects.native.answers import GenerateAnswer
from server.api.routes.documents import ErrorAnswer
from tests.wire.conftest import Process, parse_events

TEXTS = [
    "plain",
    "héllo 😀 wörld",
    "日本語の文章",
    "e\u0301\u0308 combining",
    "line\nbreak\u2028and\u2029more",
    "👩‍👩‍👧‍👦",
]


def generate(client: httpx.Client, **body: object) -> dict:
    response = client.post("/generate", json={"model": "decoder", **body})
    assert response.status_code == 200, response.text
    return GenerateAnswer.model_validate_json(response.content, strict=True).model_dump()


def stream(client: httpx.Client, **body: object) -> list[tuple[str, dict]]:
    response = client.post("/generate", json={"model": "decoder", "stream": True, **body})
    assert response.status_code == 200, response.text
    return parse_events(response.text)


def refused(client: httpx.Client, param: str | None, code: str = "invalid_request", **body: object) -> str:
    response = client.post("/generate", json={"model": "decoder", "prompt": "ab", **body})
    assert response.status_code == 422, response.text
    error = ErrorAnswer.model_validate_json(response.content).error
    assert (error.param, error.code) == (param, code)
    assert response.headers["x-request-id"] == error.request_id
    return error.message


def test_the_four_forms_of_a_prompt(client: httpx.Client) -> None:
    assert [c["text"] for c in generate(client, prompt="ab")["choices"]] == ["ab"]
    many = generate(client, prompt=["ab", "cd"])["choices"]
    assert [(c["text"], c["prompt_index"], c["index"]) for c in many] == [("ab", 0, 0), ("cd", 1, 1)]
    assert [c["text"] for c in generate(client, prompt=[100, 101])["choices"]] == ["ab"]
    assert [c["text"] for c in generate(client, prompt=[[100, 101], [102]])["choices"]] == ["ab", "c"]


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_equals_the_whole_answer(client: httpx.Client, text: str) -> None:
    events = stream(client, prompt=text)
    assert [name for name, _ in events[:-1]] == ["token"] * (len(events) - 1)
    done = events[-1]
    assert done[0] == "done"
    joined = "".join(data["text"] for name, data in events if name == "token")
    assert joined == done[1]["choices"][0]["text"] == generate(client, prompt=text)["choices"][0]["text"] == text
    assert all("\ufffd" not in data["text"] for name, data in events if name == "token")
    ids = [token["id"] for name, data in events if name == "token" for token in data["tokens"]]
    assert ids == generate(client, prompt=text, return_token_ids=True)["choices"][0]["token_ids"]


def test_a_stop_string_ends_the_text_and_is_not_part_of_it(client: httpx.Client) -> None:
    randomness = random.Random(3)
    for _ in range(60):
        text = "".join(randomness.choices("abcé😀", k=randomness.randint(1, 24)))
        stops = [
            "".join(randomness.choices("abcé😀", k=randomness.randint(1, 4))) for _ in range(randomness.randint(1, 3))
        ]
        first = min((text.find(stop) + len(stop) for stop in stops if stop in text), default=None)
        events = stream(client, prompt=text, stop=stops)
        joined = "".join(data["text"] for name, data in events if name == "token")
        choice = events[-1][1]["choices"][0]
        assert joined == choice["text"]
        if first is None:
            assert (joined, choice["stop_reason"]) == (text, None)
        else:
            assert choice["finish_reason"] == "stop" and choice["stop_reason"] in stops
            assert joined + choice["stop_reason"] == text[:first]
            kept = generate(client, prompt=text, stop=stops, include_stop=True)["choices"][0]["text"]
            assert kept == text[:first]


def test_finish_reasons_and_stop_reasons(client: httpx.Client) -> None:
    ends = generate(client, prompt="abc")["choices"][0]
    assert (ends["finish_reason"], ends["stop_reason"]) == ("stop", None)
    stopped = generate(client, prompt="abc", stop_token_ids=[101])["choices"][0]
    assert (stopped["text"], stopped["finish_reason"], stopped["stop_reason"]) == ("a", "stop", 101)
    kept = generate(client, prompt="abc", stop_token_ids=[101], include_stop=True)["choices"][0]
    assert kept["text"] == "ab"
    length = generate(client, prompt="abc", max_new_tokens=2)["choices"][0]
    assert (length["text"], length["finish_reason"]) == ("ab", "length")
    endless = generate(client, prompt="abc", max_new_tokens=7, ignore_eos=True)["choices"][0]
    assert (endless["text"], endless["finish_reason"]) == ("abcabca", "length")


def test_rows_use_consecutive_seeds_and_the_seed_is_returned(client: httpx.Client) -> None:
    answer = generate(client, prompt=["abcd", "xyz"], n=2, temperature=1.0, seed=1)
    assert [c["text"] for c in answer["choices"]] == ["bcda", "cdab", "yzx", "zxy"]
    assert answer["seed"] == 1
    drawn = {generate(client, prompt="ab", do_sample=True)["seed"] for _ in range(4)}
    assert len(drawn) == 4
    last = generate(client, prompt="ab", n=2, temperature=1.0, seed=2**64 - 1)
    assert last["seed"] == 2**64 - 1


def test_which_fields_select_greedy_search_or_sampling(client: httpx.Client) -> None:
    assert generate(client, prompt="abc", seed=1)["choices"][0]["text"] == "abc"
    assert generate(client, prompt="abc", seed=1, top_k=5)["choices"][0]["text"] == "bca"
    assert generate(client, prompt="abc", seed=1, do_sample=True)["choices"][0]["text"] == "bca"
    assert generate(client, prompt="abc", seed=1, do_sample=True, temperature=0)["choices"][0]["text"] == "abc"
    assert generate(client, prompt="abc", seed=1, temperature=0.0)["choices"][0]["text"] == "abc"


def test_beams_with_stop_strings(client: httpx.Client) -> None:
    """Every hypothesis has the text before the stop string, its score and its stop reason, also in a stream."""
    body = {"prompt": "abcd", "num_beams": 3, "num_return_sequences": 3, "stop": ["cd", "q"], "max_new_tokens": 8}
    choices = generate(client, **body, return_token_ids=True)["choices"]
    assert [choice["text"] for choice in choices] == ["ab", "b", ""]
    assert [len(choice["token_ids"]) for choice in choices] == [4, 3, 2]
    assert {(choice["finish_reason"], choice["stop_reason"]) for choice in choices} == {("stop", "cd")}
    assert [choice["score"] for choice in choices] == [0.0, -1.0, -2.0]
    kept = generate(client, **body, include_stop=True)["choices"]
    assert [choice["text"] for choice in kept] == ["abcd", "bcd", "cd"]
    events = stream(client, **body)
    assert [choice["text"] for choice in events[-1][1]["choices"]] == ["ab", "b", ""]
    assert events[-1][1]["choices"][0]["score"] == 0.0
    joined = "".join(event["text"] for kind, event in events if kind == "token" and event["index"] == 0)
    assert joined == "ab"


def test_beams(client: httpx.Client) -> None:
    choices = generate(client, prompt="abc", num_beams=3, num_return_sequences=3, max_new_tokens=8)["choices"]
    assert [(c["text"], c["score"]) for c in choices] == [("abc", 0.0), ("bca", -1.0), ("cab", -2.0)]
    events = stream(client, prompt="abc", num_beams=3, num_return_sequences=2, max_new_tokens=8)
    joined = {0: "", 1: ""}
    for name, data in events[:-1]:
        assert name == "token"
        joined[data["index"]] += data["text"]
    assert joined == {0: "abc", 1: "bca"}
    assert [c["text"] for c in events[-1][1]["choices"]] == ["abc", "bca"]


def test_n_and_best_of_with_beams(client: httpx.Client) -> None:
    """The `n` answers are the best hypotheses of one beam search, which looks for `best_of`. Streams give the same."""
    body = {"prompt": ["abc", "xyz"], "num_beams": 3, "max_new_tokens": 8}
    expected = generate(client, num_return_sequences=2, **body)
    for more in ({"n": 2}, {"n": 2, "best_of": 3}, {"n": 2, "num_return_sequences": 2}):
        answer = generate(client, **body, **more)
        assert (answer["choices"], answer["usage"]) == (expected["choices"], expected["usage"])
        streamed = stream(client, **body, **more)[-1][1]["choices"]
        assert [choice["text"] for choice in streamed] == [choice["text"] for choice in expected["choices"]]
    (best, *others) = generate(client, best_of=3, **{**body, "prompt": "abc"})["choices"]
    assert (best["text"], best["score"], others) == ("abc", 0.0, [])


def test_logprobs(client: httpx.Client) -> None:
    choice = generate(client, prompt="ab", logprobs=True, top_logprobs=2)["choices"][0]
    assert [(entry["id"], entry["token"], entry["logprob"]) for entry in choice["logprobs"]] == [
        (100, "a", -0.5),
        (101, "b", -0.5),
        (1, "</s>", -0.5),
    ]
    assert choice["logprobs"][0]["top"] == [
        {"id": 100, "token": "a", "logprob": -0.5},
        {"id": 101, "token": "b", "logprob": -1.5},
    ]
    tokens = [
        token
        for name, data in stream(client, prompt="ab", logprobs=True)
        if name == "token"
        for token in data["tokens"]
    ]
    assert tokens == [{"id": 100, "logprob": -0.5}, {"id": 101, "logprob": -0.5}, {"id": 1, "logprob": -0.5}]


def test_prompt_logprobs(client: httpx.Client) -> None:
    body = {"prompt": ["abc", "d"], "n": 2, "prompt_logprobs": True, "top_logprobs": 1, "stop": "b"}
    answer = generate(client, **body)
    scored = [choice["prompt_logprobs"] for choice in answer["choices"]]
    entries = [
        {"id": token, "token": text, "logprob": -0.25, "top": [{"id": token, "token": text, "logprob": -0.25}]}
        for token, text in ((101, "b"), (102, "c"))
    ]
    assert scored == [[None, *entries], [None, *entries], [None], [None]]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None] * 4
    events = stream(client, **body)
    assert [choice["prompt_logprobs"] for choice in events[-1][1]["choices"]] == scored
    ranked = generate(client, **{**body, "best_of": 4})["choices"]
    assert [choice["prompt_logprobs"] for choice in ranked] == scored
    beams = generate(client, prompt="abc", num_beams=2, num_return_sequences=2, prompt_logprobs=True, max_new_tokens=8)
    assert [len(choice["prompt_logprobs"]) for choice in beams["choices"]] == [3, 3]
    assert generate(client, prompt="abc")["choices"][0]["prompt_logprobs"] is None


def test_echo_puts_the_prompt_before_the_answer(client: httpx.Client) -> None:
    for prompt in [*TEXTS, [100, 101], [[100, 1, 101], [102]]]:
        plain = generate(client, prompt=prompt, n=2, seed=1, temperature=1.0)["choices"]
        choices = generate(client, prompt=prompt, n=2, seed=1, temperature=1.0, echo=True, return_token_ids=True)
        before = {str([100, 101]): ["ab"], str([[100, 1, 101], [102]]): ["ab", "c"]}.get(str(prompt), [prompt])
        expected = [before[choice["prompt_index"] or 0] + choice["text"] for choice in plain]
        assert [choice["text"] for choice in choices["choices"]] == expected
        made = [len(choice["token_ids"]) for choice in choices["choices"]]
        assert sum(made) == choices["usage"]["completion_tokens"], "the prompt does not count as completion"
        joined = [""] * len(expected)
        events = stream(client, prompt=prompt, n=2, seed=1, temperature=1.0, echo=True)
        for _, data in events[:-1]:
            joined[data["index"]] += data["text"]
        assert joined == expected == [choice["text"] for choice in events[-1][1]["choices"]]


def test_echo_with_other_options_that_change_the_text(client: httpx.Client) -> None:
    def text(**body: object) -> str:
        return generate(client, prompt="abc", echo=True, **body)["choices"][0]["text"]

    assert text(stop="c") == "abcab", "a stop string in the prompt does not end the answer"
    assert text(truncate=2) == "bcbc"
    assert text(stop_token_ids=[100]) == "abc"
    beams = generate(client, prompt="abc", echo=True, num_beams=2, num_return_sequences=2, max_new_tokens=8)
    assert [choice["text"] for choice in beams["choices"]] == ["abcabc", "abcbca"]
    special = {"prompt": [100, 1, 101], "echo": True, "skip_special_tokens": False}
    assert generate(client, **special)["choices"][0]["text"] == "a</s>bab"


def test_special_tokens_and_usage(client: httpx.Client) -> None:
    answer = generate(client, prompt=[100, 1, 101], max_new_tokens=16)
    assert answer["choices"][0]["text"] == "ab"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6, "cached_tokens": 0}
    assert answer["timings"]["total_ms"] > 0
    ended = {"prompt": "ab", "stop_token_ids": [1], "include_stop": True}
    for skip, text in ((True, "ab"), (False, "ab</s>")):
        assert generate(client, skip_special_tokens=skip, **ended)["choices"][0]["text"] == text


def test_truncate_removes_the_left_side_for_decoders_and_the_right_side_for_encoders(client: httpx.Client) -> None:
    assert generate(client, prompt="abcdef", truncate=2)["choices"][0]["text"] == "ef"
    assert generate(client, prompt=[100, 101, 102], truncate=2)["choices"][0]["text"] == "bc"
    seq2seq = generate(client, model="translator", prompt="abcdef", truncate=3, num_beams=1)
    assert seq2seq["choices"][0]["text"] == "ab"
    assert seq2seq["usage"]["prompt_tokens"] == 3


def test_max_new_tokens_is_limited_by_the_context(client: httpx.Client) -> None:
    choice = generate(client, prompt="a" * 500, max_new_tokens=4000, ignore_eos=True)["choices"][0]
    assert (len(choice["text"]), choice["finish_reason"]) == (12, "length")


def test_a_prompt_must_fit(client: httpx.Client) -> None:
    assert "512" in refused(client, "prompt", "context_length_exceeded", prompt="a" * 512)
    assert "400000" in refused(client, "prompt", "context_length_exceeded", prompt="a" * 400_001)
    text = refused(client, "prompt", "context_length_exceeded", model="translator", prompt="a" * 300)
    assert "256" in text and "301" in text
    message = refused(client, "max_new_tokens", "request_too_large", num_beams=16, max_new_tokens=400)
    assert "64" in message and "Lower `max_new_tokens`, or" in message
    answer = client.post("/v1/completions", json={"prompt": "a" * 8, "num_beams": 16, "max_tokens": 400})
    assert answer.status_code == 400 and "Lower `max_tokens`, or" in answer.json()["error"]["message"]


def test_a_prompt_that_fits_no_pool_is_not_blamed_on_the_new_tokens(client: httpx.Client) -> None:
    """The error blames the prompt even if the request limits new tokens, because a shorter answer would not help."""
    for more in ({}, {"max_new_tokens": 1}, {"max_new_tokens": 400}):
        message = refused(client, "prompt", "context_length_exceeded", prompt="a" * 300, num_beams=16, **more)
        assert "with 16 beams" in message and "Lower" not in message
    for more in ({}, {"max_tokens": 1}):
        answer = client.post("/v1/completions", json={"prompt": "a" * 300, "num_beams": 16, **more})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"
        assert "Lower" not in answer.json()["error"]["message"]


def test_a_model_without_the_operation_is_refused_with_its_routes(client: httpx.Client) -> None:
    assert "/embed" in refused(client, "model", model="embedder")


def test_best_of_returns_the_likeliest_answers(client: httpx.Client) -> None:
    """In the fake engine, a larger seed gives a lower log-probability, so the answer with seed 0 is the best."""
    body = {"prompt": ["abcd", "wxyz"], "n": 2, "temperature": 1.0, "seed": 1}
    answer = generate(client, best_of=4, **body)
    assert [(c["index"], c["text"], c["prompt_index"]) for c in answer["choices"]] == [
        (0, "abcd", 0),
        (1, "bcda", 0),
        (2, "wxyz", 1),
        (3, "xyzw", 1),
    ]
    assert answer["usage"]["completion_tokens"] == 8 * 5 and answer["seed"] == 1
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert [c["text"] for c in generate(client, **body)["choices"]] == ["bcda", "cdab", "xyzw", "yzwx"]
    shown = generate(client, best_of=4, logprobs=True, **body)["choices"][0]["logprobs"]
    assert [entry["logprob"] for entry in shown] == [-0.5] * 5


def test_best_of_ranks_the_text_before_a_stop_string(client: httpx.Client) -> None:
    answer = generate(client, prompt="abcd", best_of=4, n=4, temperature=1.0, seed=0, stop="c")
    assert [c["text"] for c in answer["choices"]] == ["ab", "b", "", "dab"]
    (best,) = generate(client, prompt="abcd", best_of=4, temperature=1.0, seed=1, stop="c")["choices"]
    assert (best["text"], best["stop_reason"]) == ("ab", "c")


def test_unknown_model_unknown_route_wrong_method(client: httpx.Client) -> None:
    unknown = client.post("/generate", json={"prompt": "a", "model": "nobody"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert client.post("/nowhere", json={}).status_code == 404
    assert client.get("/generate").status_code == 405


def test_a_failed_sequence_is_an_engine_error(client: httpx.Client) -> None:
    for streams in (False, True):
        response = client.post("/generate", json={"model": "decoder", "prompt": "%", "stream": streams})
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "engine_error"


def test_a_deadline_before_the_first_byte(client: httpx.Client) -> None:
    for streams in (False, True):
        body = {"model": "decoder", "prompt": "&", "stream": streams, "timeout_ms": 100}
        response = client.post("/generate", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
    header = client.post("/generate", json={"prompt": "&"}, headers={"X-Timeout-Ms": "50"})
    assert header.status_code == 504
    for bad in ("0", "x", "-1", "1e3", "99999999999999999999", "000000000001" + "9" * 5000, "000000000001" + "9"):
        response = client.post("/generate", json={"prompt": "a"}, headers={"X-Timeout-Ms": bad})
        assert (response.status_code, response.json()["error"]["param"]) == (422, "x-timeout-ms")


def test_a_deadline_after_the_first_byte_is_a_partial_answer(client: httpx.Client) -> None:
    for timeout_ms in (300, 3_000, 30_000):  # a slow machine may produce no token before the first deadline
        response = client.post("/generate", json={"model": "decoder", "prompt": "abc&", "timeout_ms": timeout_ms})
        if response.status_code != 504:
            break
    (choice,) = response.json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "timeout")


def test_a_wait_and_an_answer_have_limits_of_their_own(start: Callable[..., Process]) -> None:
    """The time limits of waiting and of answering are separate.

    The fake worker never starts the first two requests, and stops in the middle of the others.
    """
    waiting = {"model": "decoder", "prompt": "&"}
    # Temperature 0, because the fake worker rotates the prompt of a request that samples.
    begun = {"model": "decoder", "prompt": "abc&d", "max_tokens": 5, "temperature": 0}
    requests = [
        ("/generate", waiting | {"stream": True}),
        ("/v1/completions", waiting),
        ("/v1/completions", begun),
        ("/v1/completions", begun | {"stream": True}),
        ("/generate", {"model": "decoder", "prompt": ["abc&d", "&"]}),
    ]
    for wait, whole in ((2, 5), (10, 20), (60, 90)):  # a slow machine may produce no token before the first deadline
        server = start(
            "--queue-timeout-seconds", f"{wait}", "--default-timeout-seconds", f"{whole}", "--log-format", "json"
        )
        server.wait_ready()
        with ThreadPoolExecutor(len(requests)) as pool:
            futures = [pool.submit(server.post, path, json=body) for path, body in requests]
            answers = [future.result() for future in futures]
        if [answer.status_code for answer in answers[2:]] == [504, 200, 200]:
            break
        server.stop()
    assert [answer.status_code for answer in answers] == [504, 504, 504, 200, 200]
    for answer in answers[:2]:
        assert answer.json()["error"]["code"] == "timeout" and "--queue-timeout-seconds" in answer.text
    assert answers[2].json()["error"]["message"] == "the deadline passed before the answer was complete"
    assert "[DONE]" not in answers[3].text and '"code":"timeout"' in answers[3].text
    first, second = answers[4].json()["choices"]
    assert (first["text"], first["finish_reason"]) == ("abc", "timeout")
    assert (second["text"], second["finish_reason"], second["error"]["code"]) == ("", "timeout", "timeout")
    assert answers[4].json()["timings"]["total_ms"] > (whole - 1) * 1000
    server.stop()
    logged = [json.loads(line) for line in server.lines if '"triptych.access"' in line]
    assert [line["finish"] for line in logged if "model" in line] == ["timeout"] * 5


def test_request_ids(client: httpx.Client) -> None:
    assert client.get("/health", headers={"X-Request-Id": "my-id.1"}).headers["x-request-id"] == "my-id.1"
    for invalid in ("a b", "x" * 129, "é".encode("latin-1")):
        assert client.get("/health", headers={"X-Request-Id": invalid}).headers["x-request-id"] != invalid


def test_headers_and_format_of_a_stream(client: httpx.Client, shared_server: Process) -> None:
    with client.stream("POST", "/generate", json={"prompt": "a", "stream": True}) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        raw = response.read()
    assert raw.isascii() and b"\r" not in raw
    assert not any(line.startswith((b"id:", b"retry:")) for line in raw.split(b"\n"))
