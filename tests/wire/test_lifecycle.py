"""Clients that leave, workers that die or hang, signals, and what the operator sees."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.wire.conftest import Process, eventually, parse_events

LONG = {"model": "slow", "prompt": "abcdefgh" * 12, "max_new_tokens": 400, "ignore_eos": True}


def running(server: Process) -> float:
    return server.metric("triptych_requests_running")


def test_a_client_that_leaves_a_stream_ends_its_work(shared_server: Process) -> None:
    cancelled = shared_server.metric("triptych_requests_cancelled_total")
    with httpx.stream("POST", f"{shared_server.url}/generate", json={**LONG, "stream": True}, timeout=30) as response:
        chunks = response.iter_raw()  # kept: an iterator that is collected closes the connection
        next(chunks)
        eventually(lambda: running(shared_server) == 1)
    eventually(lambda: running(shared_server) == 0, 3)
    assert shared_server.metric("triptych_requests_cancelled_total") == cancelled + 1
    assert shared_server.metric("triptych_streams_open") == 0


@pytest.mark.parametrize(
    "body", [LONG | {"n": 3}, LONG | {"prompt": "&", "stream": True}], ids=["whole", "before any byte"]
)
def test_a_client_that_leaves_before_the_answer_ends_its_work(shared_server: Process, body: dict) -> None:
    cancelled = shared_server.metric("triptych_requests_cancelled_total")
    rows = body.get("n", 1)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{shared_server.url}/generate", json=body, timeout=0.4)
    eventually(lambda: shared_server.metric("triptych_requests_cancelled_total") == cancelled + rows, 3)
    eventually(lambda: running(shared_server) == 0, 3)


def test_a_stop_string_ends_the_work(shared_server: Process) -> None:
    answer = httpx.post(f"{shared_server.url}/generate", json=LONG | {"stop": "c"}, timeout=30).json()
    assert answer["choices"][0]["text"] == "ab"
    eventually(lambda: running(shared_server) == 0, 3)


def test_a_dead_worker_is_told_and_replaced(start: Callable[..., Process]) -> None:
    server = start().wait_ready()
    worker = server.worker()
    with ThreadPoolExecutor(9) as pool:
        streams = [
            pool.submit(httpx.post, f"{server.url}/generate", json={**LONG, "stream": True}, timeout=60)
            for _ in range(8)
        ]
        whole = pool.submit(httpx.post, f"{server.url}/generate", json=LONG, timeout=60)
        eventually(lambda: running(server) == 9)
        killed = time.monotonic()
        worker.send_signal(signal.SIGKILL)
        for future in streams:
            events = parse_events(future.result().text)
            assert events[-1][0] == "error" and events[-1][1]["error"]["code"] == "engine_error"
            assert {name for name, _ in events[:-1]} == {"token"}
        assert whole.result().status_code == 500
        assert time.monotonic() - killed < 5
    eventually(lambda: httpx.get(f"{server.url}/ready").status_code == 200)
    assert server.worker().pid != worker.pid
    assert httpx.post(f"{server.url}/generate", json={"prompt": "ab"}).json()["choices"][0]["text"] == "ab"
    assert server.metric("triptych_worker_restarts_total") == 1
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_stopped_worker_is_seen_and_replaced(start: Callable[..., Process]) -> None:
    server = start("--stale-seconds", "0.5", "--hang-seconds", "1.5").wait_ready()
    worker = server.worker()
    worker.send_signal(signal.SIGSTOP)
    eventually(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
    refused = httpx.get(f"{server.url}/ready")
    assert refused.json()["error"]["code"] == "not_ready" and int(refused.headers["retry-after"]) > 0
    eventually(lambda: httpx.get(f"{server.url}/ready").status_code == 200)
    assert not psutil.pid_exists(worker.pid)
    assert server.worker().pid != worker.pid


def test_a_worker_that_never_comes_back_turns_health_red(start: Callable[..., Process], tmp_path: Path) -> None:
    from tests.wire.checkpoints import write_checkpoint

    directory = write_checkpoint(tmp_path / "decoder")
    server = start("--max-restarts", "2", models=[f"decoder={directory}"]).wait_ready()
    (directory / "die").touch()
    server.worker().kill()
    eventually(lambda: httpx.get(f"{server.url}/health").status_code == 503)
    assert httpx.post(f"{server.url}/generate", json={"prompt": "a"}).status_code == 503


def test_sigterm_lets_streams_finish(start: Callable[..., Process]) -> None:
    server = start().wait_ready()
    worker = server.worker()
    body = {**LONG, "max_new_tokens": 40, "stream": True}
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(httpx.post, f"{server.url}/generate", json=body, timeout=60)
        eventually(lambda: running(server) == 1)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        late = httpx.post(f"{server.url}/generate", json={"prompt": "a"})
        assert (late.status_code, late.json()["error"]["code"]) == (503, "not_ready")
        assert httpx.get(f"{server.url}/health").status_code == 200
        events = parse_events(stream.result().text)
    assert events[-1][0] == "done"
    assert len(events[-1][1]["choices"][0]["text"]) == 40
    assert server.process.wait(30) == 0
    assert not psutil.pid_exists(worker.pid)


def test_sigterm_tells_streams_that_outlast_the_grace_time(start: Callable[..., Process]) -> None:
    server = start("--grace-seconds", "0.3").wait_ready()
    worker = server.worker()
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(httpx.post, f"{server.url}/generate", json={**LONG, "stream": True}, timeout=60)
        eventually(lambda: running(server) == 1)
        server.process.send_signal(signal.SIGTERM)
        events = parse_events(stream.result().text)
    assert events[-1][0] == "error" and events[-1][1]["error"]["code"] == "not_ready"
    assert server.process.wait(30) == 0
    assert not psutil.pid_exists(worker.pid)


def test_a_second_signal_leaves_at_once_and_no_worker(start: Callable[..., Process]) -> None:
    server = start().wait_ready()
    worker = server.worker()
    leaving = threading.Thread(target=lambda: _read(server))
    leaving.start()
    eventually(lambda: running(server) == 1)
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(10) == 130
    leaving.join(10)
    eventually(lambda: not psutil.pid_exists(worker.pid), 5)


def _read(server: Process) -> None:
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(f"{server.url}/generate", json={**LONG, "stream": True}, timeout=60)


def test_a_killed_server_leaves_no_worker(start: Callable[..., Process]) -> None:
    server = start().wait_ready()
    worker = server.worker()
    server.process.kill()
    server.process.wait()
    eventually(lambda: not psutil.pid_exists(worker.pid) or worker.status() == psutil.STATUS_ZOMBIE, 5)


def test_overload_is_refused(start: Callable[..., Process]) -> None:
    server = start("--max-queue-requests", "3", "--max-queue-tokens", "40").wait_ready()
    url = f"{server.url}/generate"

    def refusal(body: dict) -> tuple[int, str]:
        response = httpx.post(url, json={"model": "decoder", **body}, timeout=30)
        assert response.status_code != 429 or int(response.headers["retry-after"]) >= 1
        return response.status_code, response.json()["error"]["code"]

    assert refusal({"prompt": "a", "n": 4}) == (422, "request_too_large")
    assert refusal({"prompt": "a" * 41}) == (422, "request_too_large")
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(refusal, {"prompt": "&" * 10, "timeout_ms": 1500}) for _ in range(2)]
        eventually(lambda: running(server) == 2)
        assert refusal({"prompt": "a", "n": 2}) == (429, "overloaded")
        assert refusal({"prompt": "a" * 21}) == (429, "overloaded")
        embed = httpx.post(f"{server.url}/embed", json={"inputs": "a" * 21})
        assert embed.status_code == 429
        assert httpx.post(url, json={"model": "decoder", "prompt": "a" * 20}).status_code == 200
        assert [one.result() for one in waiting] == [(504, "timeout")] * 2
    assert httpx.post(url, json={"model": "decoder", "prompt": "a", "n": 3}).status_code == 200


def test_keys_guard_every_route(start: Callable[..., Process]) -> None:
    server = start(environment={"TRIPTYCH_API_KEYS": "first-key,second-key"}).wait_ready()
    document = httpx.get(f"{server.url}/openapi.json", headers={"authorization": "Bearer first-key"}).json()
    routes = [(method, path) for path, item in document["paths"].items() for method in item]
    routes += [
        ("post", "/predict"),
        ("get", "/openapi.json"),
        ("get", "/docs"),
        ("get", "/nowhere"),
        ("get", "//health"),
    ]
    assert len(routes) >= 14
    for method, path in routes:
        for key in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic first-key"},
            {"authorization": "Bearer"},
        ):
            response = httpx.request(method, server.url + path, headers=key)
            if path in ("/health", "/ready"):
                assert response.status_code == 200
            else:
                assert response.status_code == 401, (method, path)
                assert response.json()["error"]["code"] == "unauthorized"
                assert response.headers["www-authenticate"] == "Bearer"
    for key in ("first-key", "second-key"):
        assert httpx.get(f"{server.url}/info", headers={"authorization": f"Bearer {key}"}).status_code == 200
    assert "first-key" not in server.output


def test_a_port_in_use_fails_before_any_model_loads(start: Callable[..., Process]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started = time.monotonic()
        server = start("--port", str(port))
        assert server.process.wait(30) == 2
        assert time.monotonic() - started < 10
    eventually(lambda: "\n" in server.output)
    assert server.output == f"triptych: port {port} on 127.0.0.1 is already in use\n"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--host", "0.0.0.0"], 2, "no API key"),
        (["--port", "99999"], 2, "port"),
        (["--port", "x"], 2, "port"),
        (["--device", "tpu"], 2, "--device"),
        (["--nonsense"], 2, "--nonsense"),
        (["--stale-seconds", "5", "--hang-seconds", "4"], 2, "hang_seconds"),
        (["--api-key-file", "/nowhere/at/all"], 2, "api_key_file"),
        (["--config", "/nowhere/at/all.toml"], 2, "config"),
        (["bad=/nowhere/at/all"], 1, "nowhere"),
        (["=x"], 2, "models"),
    ],
)
def test_the_command_line_fails_with_one_line(
    start: Callable[..., Process], arguments: list[str], status: int, text: str
) -> None:
    server = start(*arguments, models=[])
    assert server.process.wait(30) == status
    eventually(lambda: "\n" in server.output)
    assert server.output.startswith("triptych: ") and server.output.count("\n") == 1, server.output
    assert text in server.output


def test_a_checkpoint_that_does_not_load_ends_the_server(start: Callable[..., Process], tmp_path: Path) -> None:
    from tests.wire.checkpoints import write_checkpoint

    directory = write_checkpoint(tmp_path / "decoder")
    (directory / "tokenizer.json").write_text("{")
    server = start(models=[f"decoder={directory}"])
    assert server.process.wait(30) == 1
    assert server.stop() == 1
    assert server.lines[-1].startswith("triptych: decoder: ")
    assert "Traceback" not in server.output
