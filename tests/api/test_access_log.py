"""The access log: client, path, model and tokens of each request, and never the prompt."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from server.ipc.wire.generate_messages import Finished, Hypothesis, Tokens
from server.ipc.wire.step_messages import Failed
from server.log_format import JsonFormatter
from tests.api.conftest import Bench
from tests.wire.fake_worker import FIRST_BYTE

Records = Callable[[], list[logging.LogRecord]]


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Records:
    """A function that returns the records of the access log so far."""
    caplog.set_level(logging.INFO, "triptych.access")
    return lambda: [record for record in caplog.records if record.name == "triptych.access"]


def fields(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = record.__dict__["fields"]
    return found


@pytest.mark.parametrize("stream", [False, True])
async def test_model_and_tokens_of_a_request(
    bench: Bench, http: httpx.AsyncClient, records: Records, stream: bool
) -> None:
    bench.become_ready()
    body = {"prompt": ["secret one", "two"], "n": 2, "stream": stream, "model": "decoder"}
    posted = asyncio.create_task(http.post("/generate?api_key=hidden", json=body, headers={"x-request-id": "mine"}))
    message = await bench.sent_generate()
    for row in message.rows:
        bench.output(tokens=[Tokens(row.sequence_id, [100, 101])])
        bench.output(finished=[Finished(row.sequence_id, [Hypothesis([100, 101, 102], "stop")], 0.0, 0.0, 0.0)])
    answer = await posted
    (record,) = records()
    logged = fields(record)
    assert logged.pop("milliseconds") > 0
    prompts = sum(map(len, message.prompts))
    assert logged == {
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/generate",
        "status": 200,
        "model": "decoder",
        "prompt_tokens": prompts,
        "completion_tokens": 12,
        "finish": "stop",
        "request_id": "mine",
    }
    if not stream:
        assert answer.json()["usage"]["prompt_tokens"] == prompts
        assert answer.json()["usage"]["completion_tokens"] == 12
    line = record.getMessage()
    assert (
        line.startswith("127.0.0.1 POST /generate 200 ")
        and f" model=decoder tokens={prompts}+12 finish=stop mine" in line
    )
    assert "secret" not in str(record.__dict__) and "hidden" not in str(record.__dict__)


async def test_the_tokens_of_all_hypotheses_count(bench: Bench, http: httpx.AsyncClient, records: Records) -> None:
    bench.become_ready()
    body = {"prompt": "ab", "num_beams": 2, "num_return_sequences": 2, "model": "decoder"}
    posted = asyncio.create_task(http.post("/generate", json=body))
    (row,) = await bench.sent_rows()
    hypotheses = [Hypothesis([100, 101], "stop", None, -1.0), Hypothesis([100, 101, 102], "stop", None, -2.0)]
    bench.output(finished=[Finished(row.sequence_id, hypotheses, 0.0, 0.0, 0.0)])
    assert (await posted).json()["usage"]["completion_tokens"] == 5
    assert fields(records()[-1])["completion_tokens"] == 5


async def test_a_path_cannot_forge_a_line(http: httpx.AsyncClient, records: Records) -> None:
    await http.get(httpx.URL("http://localhost", raw_path=b"/v1/models/x%0a2026%20ERROR%20forged" + b"y" * 1000))
    line = records()[-1].getMessage()
    assert "\n" not in line and "/v1/models/x%0A2026%20ERROR%20forged" in line and len(line) < 400
    assert "model" not in fields(records()[-1])


async def test_a_refused_request_is_logged_with_its_status(
    bench: Bench, http: httpx.AsyncClient, records: Records
) -> None:
    bench.become_ready()
    await http.post("/generate", json={"prompt": "ab", "temperature": "hot secret"})
    assert fields(records()[-1])["status"] == 422 and "secret" not in str(records()[-1].__dict__)


def test_a_json_record_is_one_line_with_its_exception() -> None:
    record = logging.LogRecord("triptych.x", logging.WARNING, "f", 1, "a %s", ("b\nc",), None)
    record.fields = {"path": "/embed"}
    text = JsonFormatter().format(record)
    assert "\n" not in text
    value = json.loads(text)
    assert (value["level"], value["logger"], value["message"], value["path"]) == (
        "warning",
        "triptych.x",
        "a b\nc",
        "/embed",
    )
    assert value["time"].endswith("+00:00")


@pytest.mark.parametrize("stream", [False, True])
async def test_why_the_answers_have_ended(
    bench: Bench, http: httpx.AsyncClient, records: Records, stream: bool
) -> None:
    bench.become_ready()
    body = {"prompt": ["a", "b", "c", "d"], "model": "decoder", "stop": "xy", "stream": stream}
    posted = asyncio.create_task(http.post("/generate", json=body))
    rows = await bench.sent_rows()
    for row, (reason, tokens) in zip(rows, [("length", [100]), ("timeout", [100]), ("length", [101])], strict=False):
        bench.output(tokens=[Tokens(row.sequence_id, [100])])
        bench.output(finished=[Finished(row.sequence_id, [Hypothesis([100, *tokens], reason)], 0.0, 0.0, 0.0)])
    for letter in "xy":
        bench.output(tokens=[Tokens(rows[3].sequence_id, [FIRST_BYTE + ord(letter)])])
    await posted
    record = records()[-1]
    assert fields(record)["finish"] == "length,timeout,stop" and " finish=length,timeout,stop " in record.getMessage()
    assert json.loads(JsonFormatter().format(record))["finish"] == "length,timeout,stop"


async def test_a_stream_that_fails_is_logged_with_the_failure(
    bench: Bench, http: httpx.AsyncClient, records: Records
) -> None:
    bench.become_ready()
    posted = asyncio.create_task(http.post("/v1/completions", json={"prompt": "a", "model": "decoder", "stream": True}))
    (row,) = await bench.sent_rows()
    bench.output(tokens=[Tokens(row.sequence_id, [100])])
    while not bench.metrics.streams_open._value.get():
        await asyncio.sleep(0)
    bench.output(failed=[Failed(row.sequence_id, "engine_error", "a fault")])
    assert (await posted).status_code == 200
    assert fields(records()[-1])["finish"] == "engine_error"


async def test_the_secret_of_a_link_is_not_logged(bench: Bench, http: httpx.AsyncClient, records: Records) -> None:
    """The log never has the key of a download link. Otherwise a reader of the log could fetch the file.

    A link still works after a `HEAD` request, so its path must not be logged.
    """
    bench.become_ready()
    job = bench.state.documents.add("", "letter.txt", "text/plain", 1)
    job.status, job.result = "done", b"text"
    for method, status in (("HEAD", 200), ("DELETE", 405), ("GET", 200), ("GET", 404)):
        answer = await http.request(method, f"/download_file/{job.key}.txt")
        assert answer.status_code == status
        assert job.key not in str(records()[-1].__dict__)
    assert " GET /download_file/{file} 404 " in records()[-1].getMessage()
