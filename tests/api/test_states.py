"""Answers while the server loads models, drains, or has no worker, and after internal errors."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from server.ipc.wire.generate_messages import Finished, Hypothesis, Tokens
from server.ipc.wire.step_messages import Abort, Failed
from tests.api.conftest import Bench
from tests.wire.conftest import parse_events

BODIES = {
    "/generate": {"prompt": "a"},
    "/translate": {"inputs": "a"},
    "/embed": {"inputs": "a"},
    "/classify": {"inputs": "a"},
    "/predict": {"inputs": "a"},
    "/tokenize": {"inputs": "a"},
    "/detokenize": {"ids": [1]},
}


@pytest.mark.parametrize("route", BODIES)
async def test_routes_answer_503_while_models_load(bench: Bench, http: httpx.AsyncClient, route: str) -> None:
    assert (await http.get("/health")).status_code == 200
    ready = await http.get("/ready")
    assert (ready.status_code, ready.json()["error"]["code"]) == (503, "not_ready")
    answer = await http.post(route, json=BODIES[route])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("route", BODIES)
async def test_a_draining_server_refuses_new_requests(bench: Bench, http: httpx.AsyncClient, route: str) -> None:
    bench.become_ready()
    assert (await http.get("/ready")).status_code == 200
    bench.state.draining = True
    assert (await http.get("/ready")).status_code == 503
    assert (await http.get("/health")).status_code == 200
    assert (await http.get("/metrics")).status_code == 200
    answer = await http.post(route, json=BODIES[route])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
    assert int(answer.headers["retry-after"]) > 0 and bench.sent == []


async def test_tokenize_works_without_a_worker(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    bench.client.on_lost()
    bench.alive = False
    assert (await http.get("/ready")).status_code == 503
    assert (await http.post("/generate", json={"prompt": "a"})).status_code == 503
    assert (await http.post("/tokenize", json={"inputs": "a"})).status_code == 200


async def failed_after_the_first_byte(bench: Bench, http: httpx.AsyncClient, *failures: Failed) -> list[Any]:
    """Stream two prompts. The first prompt gets a token, and then the given failures happen. Returns the events.

    failures: in each, `request_id` is the index of the prompt that fails.
    """
    bench.become_ready()
    body = {"prompt": ["abc", "xyz"], "stream": True, "model": "decoder"}
    posted = asyncio.create_task(http.post("/generate", json=body, headers={"x-request-id": "mine"}))
    rows = await bench.sent_rows()
    bench.output(tokens=[Tokens(rows[0].sequence_id, [100])])
    for _ in range(100):
        await asyncio.sleep(0)  # gives the stream time to begin
    bench.output(failed=[replace(failure, sequence_id=rows[failure.sequence_id].sequence_id) for failure in failures])
    events = parse_events((await posted).text)
    rest = set(range(2)) - {failure.sequence_id for failure in failures}
    assert bench.sent == [Abort(rows[number].sequence_id) for number in rest]
    return events


async def test_a_fault_after_the_first_byte_is_one_error_event_and_no_done(
    bench: Bench, http: httpx.AsyncClient
) -> None:
    """If both prompts fail, the stream ends with a single error event. If only one fails, the stream continues."""
    faults = Failed(1, "engine_error", "non-finite logits"), Failed(0, "engine_error", "another fault")
    events = await failed_after_the_first_byte(bench, http, *faults)
    assert [name for name, _ in events] == ["token", "error"]
    assert events[1][1]["error"] == {
        "message": "non-finite logits",
        "type": "server_error",
        "param": None,
        "code": "engine_error",
        "request_id": "mine",
    }


async def test_a_fault_of_the_whole_request_aborts_its_other_sequences(bench: Bench, http: httpx.AsyncClient) -> None:
    events = await failed_after_the_first_byte(bench, http, Failed(1, "request_too_large", "too many tokens"))
    assert [name for name, _ in events] == ["token", "error"]
    assert events[1][1]["error"]["code"] == "request_too_large"


async def test_tokens_that_arrive_before_the_stream_begins_form_one_event(
    bench: Bench, http: httpx.AsyncClient
) -> None:
    bench.become_ready()
    posted = asyncio.create_task(http.post("/generate", json={"prompt": "abc", "stream": True}))
    (row,) = await bench.sent_rows()
    for token in (100, 101, 102):
        bench.output(tokens=[Tokens(row.sequence_id, [token])])
    bench.output(finished=[Finished(row.sequence_id, [Hypothesis([100, 101, 102], "length")], 0.0, 0.0, 0.0)])
    events = parse_events((await posted).text)
    assert [(name, data.get("text")) for name, data in events] == [("token", "abc"), ("done", None)]


async def test_a_fault_in_the_server_is_a_500_without_details(
    bench: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.become_ready()

    def fault(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(bench.client, "submit", fault)
    answer = await http.post("/generate", json={"prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
    assert "secret" not in answer.text and "Traceback" not in answer.text


async def test_a_deadline_before_the_first_token_is_a_504(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    posted = asyncio.create_task(http.post("/generate", json={"prompt": "abc"}))
    (row,) = await bench.sent_rows()
    bench.output(finished=[Finished(row.sequence_id, [Hypothesis([], "timeout")], 0.0, 0.0, 0.0)])
    assert (await posted).status_code == 504


async def test_a_stop_string_aborts_the_sequence_and_is_not_in_the_answer(
    bench: Bench, http: httpx.AsyncClient
) -> None:
    bench.become_ready()
    body = {"model": "decoder", "prompt": "abc", "stop": "bc"}
    posted = asyncio.create_task(http.post("/generate", json=body))
    (row,) = await bench.sent_rows()
    for token in (100, 101, 102):
        bench.output(tokens=[Tokens(row.sequence_id, [token])])
    answer = (await asyncio.wait_for(posted, 30)).json()
    assert bench.sent == [Abort(row.sequence_id)]
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("a", "stop", "bc")
    assert answer["timings"]["queue_ms"] is None and answer["usage"]["completion_tokens"] == 3
