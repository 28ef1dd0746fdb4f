"""The application runs in plain uvicorn with another HTTP implementation (h11), without `triptych serve`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import eventually, is_gone
from tests.wire.checkpoints import write_checkpoint
from tests.wire.conftest import Process, parse_events

HELD = {"model": "decoder", "prompt": "abcd&efg" * 5, "max_new_tokens": 40}
"""The fake worker stops after four tokens of this request until it gets SIGUSR1."""
COMMAND = (sys.executable, "-m", "uvicorn", "--factory", "tests.wire.fake_app:create", "--http", "h11", "--port", "0")


@pytest.fixture
def start(checkpoints: list[str]) -> Iterator[Callable[..., Process]]:
    """A function that starts uvicorn with the given models, by default with all models of the fake worker."""
    started: list[Process] = []

    def begin(models: list[str] = checkpoints, **settings: str) -> Process:
        environment = {"TRIPTYCH_MODELS": ",".join(models), "TRIPTYCH_STALE_SECONDS": "60"} | settings
        environment |= {"TRIPTYCH_HANG_SECONDS": "120"}
        started.append(Process(command=COMMAND, environment=os.environ | environment))
        return started[-1].wait_ready(r"Uvicorn running on (http://\S+)")

    yield begin
    for server in started:
        server.stop()


def test_models_load_and_requests_are_answered(start: Callable[..., Process]) -> None:
    server = start()
    assert server.get("/health").status_code == 200
    eventually(lambda: server.get("/ready").status_code == 200)
    body = {"model": "decoder", "prompt": "abc", "max_new_tokens": 6}
    assert server.post("/generate", json=body).json()["choices"][0]["text"] == "abc"
    answer = server.post("/generate", json=body | {"stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = parse_events(answer.text)
    assert "".join(data["text"] for name, data in events if name == "token") == "abc"
    assert events[-1][0] == "done" and "\r" not in answer.text
    assert server.output.count("events use ASGI") == 1


def test_a_signal_lets_streams_finish_and_ends_the_worker(start: Callable[..., Process]) -> None:
    server = start()
    eventually(lambda: server.get("/ready").status_code == 200)
    worker = server.worker()
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(server.post, "/generate", json=HELD | {"stream": True})
        eventually(lambda: server.metric("triptych_requests_running") == 1)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: "Waiting for connections to close" in server.output)
        worker.send_signal(signal.SIGUSR1)
        events = parse_events(stream.result().text)
    assert events[-1][0] == "done" and len(events[-1][1]["choices"][0]["text"]) == 40
    server.wait()
    assert is_gone(worker)
    assert "Application shutdown complete" in server.output and "Traceback" not in server.output


def test_a_checkpoint_that_does_not_load_makes_health_answer_503(start: Callable[..., Process], tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "decoder")
    (directory / "tokenizer.json").write_text("{")
    server = start([f"decoder={directory}"])
    eventually(lambda: server.get("/health").status_code == 503)
    assert server.get("/ready").status_code == 503
    eventually(lambda: "cannot serve: decoder: " in server.output)
    assert "Traceback" not in server.output


def test_health_says_that_no_worker_can_be_brought_back(start: Callable[..., Process], tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "decoder")
    server = start([f"decoder={directory}"], TRIPTYCH_MAX_RESTARTS="2")
    eventually(lambda: server.get("/ready").status_code == 200)
    (directory / "die").touch()
    server.worker().kill()
    eventually(lambda: server.get("/health").status_code == 503)
    assert server.get("/health").json()["error"]["code"] == "failed"
    assert server.post("/generate", json={"prompt": "a"}).status_code == 503
    eventually(lambda: "cannot serve: a worker failed 2 times within 60 s" in server.output)
