"""An internal error is logged once, with the place in the code and the request id.

The message of the exception is not logged, because it may contain parts of a prompt."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import warnings
from typing import Any

import httpx
import pytest

from server.ipc.wire.generate_messages import Tokens
from server.log_format import JsonFormatter, fault_place, start_logging
from server.operations.generating import generated_text
from tests.api.conftest import Bench

SECRET = "CaNaRy"


def fail(*arguments: Any, **named: Any) -> Any:
    try:
        raise ValueError(SECRET)
    except ValueError:
        raise KeyError(SECRET)  # noqa: B904


@pytest.fixture
async def http(bench: Bench) -> Any:
    transport = httpx.ASGITransport(bench.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_a_fault_before_the_answer(
    bench: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.become_ready()
    monkeypatch.setattr(type(bench.runtime.loaded()[0].tokenizer), "encode", fail)
    answer = await http.post("/tokenize", json={"inputs": SECRET}, headers={"x-request-id": "mine"})
    assert answer.status_code == 500 and answer.json()["error"]["request_id"] == "mine"
    check(caplog)


async def test_a_request_without_memory_is_503(
    bench: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_memory(*arguments: Any, **named: Any) -> Any:
        raise MemoryError

    bench.become_ready()
    monkeypatch.setattr(type(bench.runtime.loaded()[0].tokenizer), "encode", no_memory)
    answer = await http.post("/tokenize", json={"inputs": SECRET})
    assert answer.status_code == 503 and "no memory" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"] == "2"
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert line.startswith("no memory in /tokenize, request ")


async def test_a_fault_in_a_stream(
    bench: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.become_ready()
    body = {"prompt": "ab", "model": "decoder", "stream": True}
    posted = asyncio.create_task(http.post("/generate", json=body, headers={"x-request-id": "mine"}))
    (row,) = await bench.sent_rows()
    bench.output(tokens=[Tokens(row.sequence_id, [100])])
    for _ in range(20):
        await asyncio.sleep(0)
    monkeypatch.setattr(generated_text.GeneratedText, "push", fail)
    bench.output(tokens=[Tokens(row.sequence_id, [101])])
    await asyncio.gather(posted, return_exceptions=True)
    check(caplog)


def check(caplog: pytest.LogCaptureFixture) -> None:
    (fault,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "request mine" in fault.getMessage() and "KeyError" in fault.getMessage() and "in fail" in fault.getMessage()
    assert SECRET not in JsonFormatter().format(fault) and SECRET not in caplog.text


def test_the_place_of_a_fault_has_its_causes() -> None:
    with pytest.raises(KeyError) as error:
        fail()
    text = fault_place(error.value)
    assert text.count("in fail") == 2 and "ValueError" in text and text.endswith("ValueError") and SECRET not in text


def test_warnings_threads_and_the_end_of_the_process_are_json_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    levels = root.level, logging.getLogger("triptych").level
    try:
        with warnings.catch_warnings():
            start_logging("debug", "json")
            warnings.simplefilter("always")
            warnings.warn("an old function", DeprecationWarning, stacklevel=1)
        thread = threading.Thread(target=fail, name="tokenizer")
        thread.start()
        thread.join()
        try:
            fail()
        except KeyError as error:
            sys.excepthook(type(error), error, error.__traceback__)
        logging.getLogger("triptych.x").debug("ours")
        logging.getLogger("library").info(SECRET)
    finally:
        logging.captureWarnings(False)
        root.setLevel(levels[0])
        logging.getLogger("triptych").setLevel(levels[1])
    values = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [value["level"] for value in values] == ["warning", "critical", "critical", "debug"]
    assert "an old function" in values[0]["message"] and "thread tokenizer" in values[1]["message"]
    assert values[2]["message"] == "an uncaught exception ends the process" and SECRET not in values[1]["message"]
