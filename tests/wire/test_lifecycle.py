"""Clients that disconnect, workers that die or hang, signals, API keys, and errors of the command line."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from server.api.dialects import registry
from server.api.entry.middleware import PUBLIC_PATHS
from tests.waiting import HANG_SECONDS, eventually, is_gone, open_request
from tests.wire.conftest import Process, parse_events

HELD = {"model": "decoder", "prompt": "abcd&efg" * 5, "max_new_tokens": 40}
"""The fake worker stops after four tokens of this request until it gets SIGUSR1."""


def running(server: Process) -> float:
    return server.metric("triptych_requests_running")


def is_ready(server: Process) -> bool:
    return server.get("/ready").status_code == 200


def test_a_disconnect_during_a_stream_ends_its_work(shared_server: Process) -> None:
    cancelled = shared_server.metric("triptych_requests_cancelled_total")
    body = HELD | {"stream": True}
    with httpx.stream("POST", f"{shared_server.url}/generate", json=body, timeout=HANG_SECONDS) as response:
        chunks = response.iter_raw()  # in a variable: httpx closes the connection when the iterator is collected
        next(chunks)
        eventually(lambda: running(shared_server) == 1)
    eventually(lambda: running(shared_server) == 0)
    assert shared_server.metric("triptych_requests_cancelled_total") == cancelled + 1
    assert shared_server.metric("triptych_streams_open") == 0


@pytest.mark.parametrize(
    "body", [HELD | {"n": 3}, HELD | {"prompt": "&", "stream": True}], ids=["whole", "before any byte"]
)
def test_a_disconnect_before_the_answer_ends_its_work(shared_server: Process, body: dict) -> None:
    cancelled = shared_server.metric("triptych_requests_cancelled_total")
    rows = body.get("n", 1)
    with open_request(f"{shared_server.url}/generate", json=body):
        eventually(lambda: running(shared_server) == rows)
    eventually(lambda: shared_server.metric("triptych_requests_cancelled_total") == cancelled + rows)
    eventually(lambda: running(shared_server) == 0)


def test_a_stop_string_ends_the_work(shared_server: Process) -> None:
    answer = shared_server.post("/generate", json=HELD | {"stop": "c"}).json()
    assert answer["choices"][0]["text"] == "ab"
    eventually(lambda: running(shared_server) == 0)


def test_a_dead_worker_fails_its_requests_and_is_replaced(start: Callable[..., Process]) -> None:
    server = start().wait_ready()
    worker = server.worker()
    with ThreadPoolExecutor(9) as pool:
        streams = [pool.submit(server.post, "/generate", json=HELD | {"stream": True}) for _ in range(8)]
        whole = pool.submit(server.post, "/generate", json=HELD)
        eventually(lambda: running(server) == 9)
        worker.send_signal(signal.SIGKILL)
        for future in streams:
            events = parse_events(future.result().text)
            assert events[-1][0] == "error" and events[-1][1]["error"]["code"] == "engine_error"
            assert {name for name, _ in events[:-1]} == {"token"}
        assert whole.result().status_code == 500
    eventually(lambda: is_ready(server))
    assert server.worker().pid != worker.pid
    assert server.post("/generate", json={"prompt": "ab"}).json()["choices"][0]["text"] == "ab"
    assert server.metric("triptych_worker_restarts_total") == 1
    assert server.get("/health").status_code == 200


def test_a_hung_worker_is_noticed_and_replaced(start: Callable[..., Process]) -> None:
    server = start("--stale-seconds", "0.5", "--hang-seconds", "4").wait_ready()
    worker = server.worker()
    worker.send_signal(signal.SIGSTOP)
    answers: list[httpx.Response] = []

    def is_not_ready() -> bool:
        answers.append(server.get("/ready"))
        return answers[-1].status_code == 503

    eventually(is_not_ready)
    assert answers[-1].json()["error"]["code"] == "not_ready" and int(answers[-1].headers["retry-after"]) > 0
    eventually(lambda: is_gone(worker) and is_ready(server))
    assert server.metric("triptych_worker_restarts_total") >= 1


def test_a_server_whose_workers_keep_failing_exits_and_says_why(start: Callable[..., Process], tmp_path: Path) -> None:
    from tests.wire.checkpoints import write_checkpoint

    directory = write_checkpoint(tmp_path / "decoder")
    server = start("--max-restarts", "3", models=[f"decoder={directory}"]).wait_ready()
    with ThreadPoolExecutor(2) as pool:
        begun = pool.submit(server.post, "/generate", json=HELD | {"stream": True})
        waiting = pool.submit(server.post, "/generate", json=HELD | {"prompt": "&"})
        eventually(lambda: running(server) == 2)
        (directory / "die").touch()
        server.worker().kill()
        assert parse_events(begun.result().text)[-1][1]["error"]["code"] == "engine_error"
        assert waiting.result().status_code == 500, "it waited for a worker until there was no hope"
    assert server.wait() == 2
    eventually(lambda: "ended with status 3\n" in server.output)
    assert re.fullmatch(
        r"triptych: a worker failed 3 times within 60 s; the last one \(process \d+\) ended with status 3\n",
        server.lines[-1],
    )
    assert "Traceback" not in server.output


def test_a_request_that_kills_its_worker_is_tried_twice(start: Callable[..., Process]) -> None:
    server = start().wait_ready()
    assert server.post("/generate", json={"model": "decoder", "prompt": "!"}).status_code == 500
    assert server.metric("triptych_worker_restarts_total") == 2
    eventually(lambda: is_ready(server))


def test_two_workers_share_the_requests_and_one_answers_while_the_other_is_replaced(
    start: Callable[..., Process],
) -> None:
    server = start("--workers", "2").wait_ready()
    first, second = server.workers()
    assert server.get("/info").json()["workers"] == {"ready": 2, "total": 2}
    with ThreadPoolExecutor(8) as pool:
        streams = []
        for number in range(4):
            body = HELD | {"prompt": f"{number}bcd&efg" * 5, "stream": True}
            streams.append(pool.submit(server.post, "/generate", json=body))
            eventually(lambda number=number: running(server) == number + 1)
        waiting = [pool.submit(server.post, "/generate", json=HELD | {"prompt": "&"}) for _ in range(4)]
        eventually(lambda: running(server) == 8)
        first.send_signal(signal.SIGKILL)
        eventually(lambda: any(stream.done() for stream in streams))
        assert is_ready(server)
        second.send_signal(signal.SIGUSR1)
        eventually(lambda: server.get("/info").json()["workers"]["ready"] == 2)
        for worker in server.workers():
            worker.send_signal(signal.SIGUSR1)
        endings = [parse_events(stream.result().text)[-1] for stream in streams]
        assert sorted(name for name, _ in endings) == ["done", "done", "error", "error"]
        assert [future.result().status_code for future in waiting] == [200] * 4
    assert server.metric("triptych_worker_restarts_total") == 1
    eventually(lambda: running(server) == 0)
    assert {worker.pid for worker in server.workers()} > {second.pid}
    assert server.stop() == 0
    eventually(lambda: is_gone(first) and is_gone(second))


def test_requests_to_a_stopped_worker_go_to_the_other_one(start: Callable[..., Process]) -> None:
    """A stopped worker answers nothing, but its sockets stay open."""
    server = start("--workers", "2", "--stale-seconds", "0.5", "--hang-seconds", "4").wait_ready()
    first, _ = server.workers()
    first.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: server.post("/generate", json={"prompt": "ab"}), range(8)))
        assert [answer.status_code for answer in answers] == [200] * 8
    assert is_ready(server)
    eventually(lambda: is_gone(first) and server.get("/info").json()["workers"]["ready"] == 2)
    assert server.metric("triptych_worker_restarts_total") >= 1


def test_sighup_replaces_the_workers_without_dropping_a_stream(start: Callable[..., Process]) -> None:
    server = start("--workers", "2").wait_ready()
    old = server.workers()
    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(server.post, "/generate", json=HELD | {"stream": True}) for _ in range(4)]
        eventually(lambda: running(server) == 4)
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: len(server.workers()) == 3)
        assert is_ready(server)
        for worker in old:
            worker.send_signal(signal.SIGUSR1)
        assert [parse_events(stream.result().text)[-1][0] for stream in streams] == ["done"] * 4
    eventually(lambda: all(map(is_gone, old)))
    eventually(lambda: server.get("/info").json()["workers"] == {"ready": 2, "total": 2})
    assert server.post("/generate", json={"prompt": "ab"}).json()["choices"][0]["text"] == "ab"
    assert server.metric("triptych_worker_restarts_total") == 0


def test_sigterm_lets_streams_finish(start: Callable[..., Process]) -> None:
    server = start().wait_ready()
    worker = server.worker()
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(server.post, "/generate", json=HELD | {"stream": True})
        eventually(lambda: running(server) == 1)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: not is_ready(server))
        late = server.post("/generate", json={"prompt": "a"})
        assert (late.status_code, late.json()["error"]["code"]) == (503, "not_ready")
        assert server.get("/health").status_code == 200
        worker.send_signal(signal.SIGUSR1)
        events = parse_events(stream.result().text)
    assert events[-1][0] == "done"
    assert len(events[-1][1]["choices"][0]["text"]) == 40
    assert server.wait() == 0
    assert is_gone(worker)


def test_streams_that_outlast_the_grace_time_end_with_an_error_event(start: Callable[..., Process]) -> None:
    server = start("--grace-seconds", "0.3").wait_ready()
    worker = server.worker()
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(server.post, "/generate", json=HELD | {"stream": True})
        eventually(lambda: running(server) == 1)
        server.process.send_signal(signal.SIGTERM)
        events = parse_events(stream.result().text)
    assert events[-1][0] == "error" and events[-1][1]["error"]["code"] == "not_ready"
    assert server.wait() == 0
    assert is_gone(worker)


def test_a_second_signal_ends_server_and_worker_at_once(start: Callable[..., Process]) -> None:
    server = start().wait_ready()
    worker = server.worker()
    with open_request(f"{server.url}/generate", json=HELD | {"stream": True}):
        eventually(lambda: running(server) == 1)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: not is_ready(server))
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 130
    eventually(lambda: is_gone(worker))


def test_a_killed_server_leaves_no_worker(start: Callable[..., Process]) -> None:
    server = start().wait_ready()
    worker = server.worker()
    server.process.kill()
    server.process.wait()
    eventually(lambda: is_gone(worker))


def test_requests_beyond_the_queue_limits_are_refused(start: Callable[..., Process]) -> None:
    server = start("--max-queue-requests", "3", "--max-queue-tokens", "40").wait_ready()

    def ask(body: dict) -> httpx.Response:
        return server.post("/generate", json={"model": "decoder", **body})

    def refusal(body: dict) -> tuple[int, str]:
        response = ask(body)
        assert response.status_code != 429 or int(response.headers["retry-after"]) >= 1
        return response.status_code, response.json()["error"]["code"]

    assert ask({"prompt": "a", "n": 4}).status_code == 200, "sent in parts"
    assert refusal({"prompt": "a" * 41}) == (422, "request_too_large")
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(ask, {"prompt": "&" * 10}) for _ in range(2)]
        eventually(lambda: running(server) == 2)
        assert refusal({"prompt": "a" * 21}) == (429, "overloaded")
        assert server.post("/embed", json={"inputs": "a" * 21}).status_code == 429
        assert ask({"prompt": "a" * 20}).status_code == 200
        waiting.append(pool.submit(ask, {"prompt": "&" * 10}))
        eventually(lambda: running(server) == 3)
        assert refusal({"prompt": "a"}) == (429, "overloaded")
        server.worker().send_signal(signal.SIGUSR1)
        assert [future.result().status_code for future in waiting] == [200, 200, 200]


def test_every_route_but_probes_and_the_page_needs_a_key(start: Callable[..., Process]) -> None:
    server = start(environment={"TRIPTYCH_API_KEYS": "first-key,second-key"}).wait_ready()
    document = server.get("/openapi.json", headers={"authorization": "Bearer first-key"}).json()
    routes = [(method, path) for path, item in document["paths"].items() for method in item]
    routes += [
        ("post", "/predict"),
        ("get", "/openapi.json"),
        *(("get", path) for path in PUBLIC_PATHS),
        *(("post", path) for path in PUBLIC_PATHS),
        ("head", "/"),
        ("head", "/info"),
        ("get", "/docs/"),
        ("get", "/nowhere"),
        ("get", "//health"),
    ]
    assert len(routes) >= 14
    dialects = (*registry.ROUTES, *registry.GET_ROUTES, *registry.OWNED_ROUTES)
    statuses = {route.path: route.errors.statuses.get(401, 401) for route in dialects}
    for method, path in routes:
        for key in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic first-key"},
            {"authorization": "Bearer"},
        ):
            response = httpx.request(method, server.url + path, headers=key, timeout=HANG_SECONDS)
            if path == "/download_file/{file}":
                assert response.status_code == 404, "the link is the secret, and this one is wrong"
                continue
            if path in PUBLIC_PATHS and (method == "get" or (path == "/" and method == "head")):
                assert response.status_code == 200
                continue
            assert response.status_code in (401, statuses.get(path, 401)), (method, path)
            if method != "head":
                assert "valid API key" in response.text
            assert response.headers["www-authenticate"] == "Bearer"
    for key in ("first-key", "second-key"):
        assert server.get("/info", headers={"authorization": f"Bearer {key}"}).status_code == 200
    assert "first-key" not in server.output


def test_a_port_in_use_fails_before_any_model_loads(start: Callable[..., Process]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = start("--port", str(port), models=["decoder=/nowhere/at/all"])
        assert server.wait() == 2
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
    assert server.wait() == status
    eventually(lambda: "\n" in server.output)
    assert server.output.startswith("triptych: ") and server.output.count("\n") == 1, server.output
    assert text in server.output


@pytest.mark.parametrize("model", ["decoder", "reranker"])
def test_a_template_that_leaves_out_the_user_ends_a_server_that_chats(
    start: Callable[..., Process], tmp_path: Path, model: str
) -> None:
    from tests.wire.checkpoints import write_checkpoint

    directory = write_checkpoint(tmp_path / model)
    (directory / "chat_template.jinja").write_text("{% for one in messages %}{{ one.text }}{% endfor %}")
    server = start(models=[f"{model}={directory}"])
    if model == "reranker":
        server.wait_ready()
        return
    assert server.wait() == 1
    eventually(lambda: server.lines)
    assert server.lines[-1].startswith('triptych: decoder: the chat template "default" leaves out what the user writes')
    assert server.lines[-1].count("\n") == 1 and "Traceback" not in server.output


def test_a_checkpoint_that_does_not_load_ends_the_server(start: Callable[..., Process], tmp_path: Path) -> None:
    from tests.wire.checkpoints import write_checkpoint

    directory = write_checkpoint(tmp_path / "decoder")
    (directory / "tokenizer.json").write_text("{")
    server = start(models=[f"decoder={directory}"])
    assert server.wait() == 1
    assert server.stop() == 1
    assert server.lines[-1].startswith("triptych: decoder: ")
    assert "Traceback" not in server.output
