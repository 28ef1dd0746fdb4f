"""Failures of single sequences of a request: which parts of the answer end, and when the whole request fails."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from server.ipc.wire.generate_messages import Finished, Generate, Hypothesis, Tokens
from server.ipc.wire.step_messages import Abort, Failed
from tests.api.conftest import Bench
from tests.wire.conftest import parse_events

BODY = {"model": "decoder", "prompt": ["ab", "cd", "ef"], "max_new_tokens": 9}


def finished(sequence_id: int, *tokens: int) -> Finished:
    return Finished(sequence_id, [Hypothesis([*tokens, 1], "stop", 1)], 0.0, 0.0, 0.0)


async def begin(bench: Bench, http: httpx.AsyncClient, path: str, **body: Any) -> tuple[asyncio.Task, Generate]:
    posted = asyncio.create_task(http.post(path, json=body))
    return posted, await bench.sent_generate()


async def test_a_failure_after_some_tokens(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    posted, message = await begin(bench, http, "/generate", **BODY, stream=True)
    first, second, third = (row.sequence_id for row in message.rows)
    bench.output(tokens=[Tokens(first, [100]), Tokens(second, [101])])
    bench.output(failed=[Failed(second, "engine_error", "broken")], tokens=[Tokens(third, [102])])
    bench.output(finished=[finished(first, 100), finished(third, 102)])
    events = parse_events((await posted).text)
    assert events[-1][0] == "done"
    texts = ["".join(d["text"] for n, d in events if n == "token" and d["index"] == index) for index in range(3)]
    choices = events[-1][1]["choices"]
    assert [choice["text"] for choice in choices] == texts == ["a", "b", "c"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "error", "stop"]
    assert choices[1]["error"]["message"] == "broken"


@pytest.mark.parametrize("streams", [False, True])
async def test_the_status_of_a_request_whose_parts_fail_one_after_the_other(
    bench: Bench, http: httpx.AsyncClient, streams: bool
) -> None:
    """When all parts fail, the response has an error status and reports the first failure.

    A stream can do so too, because it has sent nothing yet.
    """
    bench.become_ready()
    posted, message = await begin(bench, http, "/generate", **BODY, stream=streams)
    for index, row in enumerate(message.rows):
        assert not posted.done()
        bench.output(failed=[Failed(row.sequence_id, "engine_error", f"broken {index}")])
        for _ in range(20):
            await asyncio.sleep(0)
    response = await posted
    assert (response.status_code, response.json()["error"]["message"]) == (500, "broken 0")


@pytest.mark.parametrize(("code", "status"), [("not_ready", 503), ("request_too_large", 422)])
async def test_failures_that_concern_all_parts(bench: Bench, http: httpx.AsyncClient, code: Any, status: int) -> None:
    bench.become_ready()
    posted, message = await begin(bench, http, "/generate", **BODY)
    bench.output(failed=[Failed(message.rows[1].sequence_id, code, "no")])
    assert (await posted).status_code == status


async def test_the_other_sentences_of_a_failed_text_are_ended(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    body = {"model": "translator", "inputs": ["Ab. Cd. Ef.", "Gh."]}
    posted, message = await begin(bench, http, "/translate", **body)
    ids = [row.sequence_id for row in message.rows]
    bench.output(finished=[finished(ids[0], 100)], failed=[Failed(ids[1], "invalid_format", "no")])
    for _ in range(20):
        await asyncio.sleep(0)
    assert [sent.sequence_id for sent in bench.sent if isinstance(sent, Abort)] == [ids[2]]
    bench.output(finished=[finished(ids[3], 101)])
    first, second = (await posted).json()["translations"]
    assert (first["finish_reason"], first["text"], first["error"]["code"]) == ("error", "", "invalid_request")
    assert (second["finish_reason"], second["text"]) == ("stop", "b")


async def test_rows_that_share_log_probabilities_fail_together(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    body = {**BODY, "prompt": ["ab", "cd"], "n": 2, "prompt_logprobs": True, "seed": 1}
    posted, message = await begin(bench, http, "/generate", **body)
    ids = [row.sequence_id for row in message.rows]
    bench.output(failed=[Failed(ids[2], "engine_error", "broken")])
    for _ in range(20):
        await asyncio.sleep(0)
    assert [sent.sequence_id for sent in bench.sent if isinstance(sent, Abort)] == [ids[3]]
    assert not posted.done()
    bench.output(failed=[Failed(sequence_id, "engine_error", "broken") for sequence_id in ids[:2]])
    assert (await posted).status_code == 500


async def test_a_failure_in_a_request_that_is_sent_in_parts(bench: Bench, http: httpx.AsyncClient) -> None:
    """The sentences of the failed text that still wait go to the engine, and their results are ignored.

    The other text is translated.
    """
    bench.become_ready()
    body = {"model": "translator", "inputs": ["A.\n" * 600, "Bc."]}
    posted = asyncio.create_task(http.post("/translate", json=body))
    parts = rows = 0
    while not posted.done():
        await asyncio.sleep(0)
        messages = [sent for sent in bench.sent if isinstance(sent, Generate)]
        bench.sent.clear()
        for message in messages:
            ids = [row.sequence_id for row in message.rows]
            failed = [] if parts else [Failed(ids.pop(0), "engine_error", "broken")]
            bench.output(failed=failed, finished=[finished(sequence_id, 100) for sequence_id in ids])
            parts, rows = parts + 1, rows + len(message.rows)
    first, second = (await posted).json()["translations"]
    assert parts > 1 and rows == 601
    assert (first["finish_reason"], second["finish_reason"], second["text"]) == ("error", "stop", "a")
