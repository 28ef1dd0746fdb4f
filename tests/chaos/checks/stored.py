"""Check promises 41 and 42: documents and responses that the HTTP process stores for API keys."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.chaos.checks.clients import p99
from tests.chaos.checks.latency import gaps_beside, no_work
from tests.chaos.checks.security import KEY_FILE, KEYS
from tests.chaos.dearest.files import document
from tests.chaos.pytest_run import run_tests
from tests.chaos.record import Record
from tests.chaos.server import server
from tests.e2e.conftest import RunningServer
from tests.waiting import HANG_SECONDS

PARAGRAPHS_OF_A_PAGE = 20
OWNERS = tuple({"authorization": f"Bearer {key}"} for key in KEYS)


def documents(runs: int, pages: int = 300, seconds: float = 10.0) -> Record:
    """Promise 41: hostile documents are refused, a document does not slow down streams, and no part of it is left.

    runs: number of documents that are translated beside streams; 0 to run only the tests.
    pages: size of these documents. seconds: time for which the streams are measured beside each of them.
    """
    record = Record("test or document")
    run_tests(record, "tests/text/documents/test_reader.py", "tests/api/test_document_jobs.py")
    if not runs:
        return record
    lengths = 400, 100
    with server() as running:
        alone = asyncio.run(gaps_beside(running.url, no_work, 16, *lengths))
        beside: list[float] = []
        for _ in range(runs):

            async def translate() -> None:
                _upload(running, pages * PARAGRAPHS_OF_A_PAGE)
                await asyncio.sleep(seconds)

            beside += asyncio.run(gaps_beside(running.url, translate, 16, *lengths))
            alone += asyncio.run(gaps_beside(running.url, no_work, 16, *lengths))
            record.runs += 1
    record.most("p99 gap of 16 streams beside a document", p99(beside) / p99(alone), 1.5, "times alone")
    with server() as running:
        before = _written_bytes(running)
        handle = _upload(running, 200)
        path, key = f"/v2/document/{handle['document_id']}", {"document_key": handle["document_key"]}
        end = time.monotonic() + HANG_SECONDS
        while (state := running.post(path, json=key).json()["status"]) != "done" and time.monotonic() < end:
            time.sleep(0.2)
        record.must(state == "done", f"a document: {state}")
        record.must(running.post(f"{path}/result", json=key).status_code == 200, "the translation is not there")
        # The log is written to a file, too.
        record.most("bytes written for a document", _written_bytes(running) - before, 4096, "bytes")
        record.must(running.post(f"{path}/result", json=key).status_code == 404, "a document stays after its fetch")
        record.runs += 1
    return record


def _upload(running: RunningServer, paragraphs: int) -> dict[str, Any]:
    """Send a document to be translated in the background."""
    file = document("docx", "The old man is a student. ", paragraphs)
    answer = running.post("/v2/document", files={"file": (file.name, bytes(file))}, data={"target_lang": "FR"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _written_bytes(running: RunningServer) -> int:
    """Bytes that the processes of a server have written to files so far."""
    root = psutil.Process(running.process.pid)
    return sum(process.io_counters().write_bytes for process in (root, *root.children(recursive=True)))


def responses(records: int = 200) -> Record:
    """Promise 42: stored responses have limits of bytes and age, and no API key can read those of another one.

    records: number of responses that one key stores, more than its memory can hold; 0 to run only the tests.
    """
    record = Record("test or request")
    run_tests(record, "tests/api/test_stored_responses.py", "tests/api/dialects/test_responses_store.py")
    if not records:
        return record
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "keys.toml"
        file.write_text(KEY_FILE)
        with server("--api-key-file", str(file), "--responses-memory", "128K") as running:
            _two_owners(record, running.url, records)
    with server("--responses-ttl-seconds", "1") as running:
        stored = _store(record, running.url, {})
        eventual = time.monotonic() + HANG_SECONDS
        time.sleep(1.1)
        status = httpx.get(f"{running.url}/v1/responses/{stored}", timeout=HANG_SECONDS).status_code
        record.must(status == 404 and time.monotonic() < eventual, f"a response whose time is over: status {status}")
        record.runs += 1
    return record


def _store(record: Record, url: str, headers: dict[str, str], **more: str) -> str:
    body = {"model": "story", "input": "The old fox", "max_output_tokens": 16, **more}
    answer = httpx.post(f"{url}/v1/responses", json=body, headers=headers, timeout=HANG_SECONDS)
    record.must(answer.status_code == 200, f"a response: status {answer.status_code}")
    return str(answer.json().get("id", ""))


def _two_owners(record: Record, url: str, records: int) -> None:
    first, second = OWNERS
    own = _store(record, url, second)
    foreign = [_store(record, url, first) for _ in range(records)]
    with httpx.Client(base_url=url, timeout=HANG_SECONDS) as client:

        def status(method: str, path: str, owner: dict[str, str], body: object = None) -> int:
            record.runs += 1
            content = None if body is None else json.dumps(body)
            return client.request(
                method, path, content=content, headers=owner | {"content-type": "application/json"}
            ).status_code

        kept = [found for found in foreign if status("GET", f"/v1/responses/{found}", first) == 200]
        record.must(0 < len(kept) < records, f"{len(kept)} of {records} responses are kept")
        record.must(kept == foreign[-len(kept) :], "a response is dropped before an older one")
        record.must(status("GET", f"/v1/responses/{own}", second) == 200, "one key drops what another one has stored")
        for found in kept[-3:]:
            path = f"/v1/responses/{found}"
            continued = {"model": "story", "input": "a", "max_output_tokens": 16, "previous_response_id": found}
            for method, tried, body in (
                ("GET", path, None),
                ("GET", f"{path}/input_items", None),
                ("POST", f"{path}/cancel", {}),
                ("DELETE", path, None),
                ("POST", "/v1/responses", continued),
            ):
                answer = status(method, tried, second, body)
                record.must(answer in (400, 404), f"{method} of another key's response: status {answer}")
            record.must(status("GET", path, first) == 200, "another key has dropped a response")
