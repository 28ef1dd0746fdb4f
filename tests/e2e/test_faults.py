"""The whole server under load, with clients that disconnect, and with a killed worker."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.chaos.checks.worker_faults import one_of_two_killed
from tests.e2e.conftest import RunningServer
from tests.e2e.sse import events, stream
from tests.waiting import HANG_SECONDS, eventually, is_gone, open_request

LONG = {"prompt": "Once upon a time", "n": 16, "max_new_tokens": 480, "ignore_eos": True, "stream": True}
"""A long request. Eight of them fill all rows of a step, and keep the worker busy for longer than any test takes."""


def mixed_request(server: RunningServer, i: int) -> tuple[int, object]:
    """Send the request with index `i` of a mix over all demo models.

    Returns the index of its kind, and the part of the answer that is compared.
    """
    kind = i % 6
    prompt = ["The old fox", "Once upon a time", "A little girl", "The king"][i // 6 % 4]
    route, body = [
        ("/generate", {"prompt": prompt, "max_new_tokens": 24}),
        ("/generate", {"prompt": prompt, "max_new_tokens": 24, "temperature": 0.9, "top_k": 20, "seed": i}),
        ("/translate", {"inputs": ["I am a student", f"{prompt} sleeps."], "source_lang": "en", "target_lang": "fr"}),
        ("/embed", {"inputs": [prompt, "The dog chased the cat."] * 4}),
        ("/classify", {"inputs": f"{prompt}: I loved this wonderful film"}),
        ("/generate", {"prompt": prompt, "max_new_tokens": 24, "stream": True}),
    ][kind]
    if body.get("stream"):
        received = stream(server.url + route, body)
        assert received[-1][0] == "done"
        return kind, received[-1][1]["choices"][0]["text"]
    response = httpx.post(server.url + route, json=body, timeout=120)
    assert response.status_code == 200, response.text
    answer = response.json()
    if kind in (0, 1):
        return kind, answer["choices"][0]["text"]
    if kind == 2:
        return kind, [t["text"] for t in answer["translations"]]
    return kind, answer


def test_64_concurrent_requests_get_the_same_answers_as_alone(demo_server: RunningServer) -> None:
    with ThreadPoolExecutor(64) as pool:
        together = list(pool.map(lambda i: mixed_request(demo_server, i), range(64)))
    for i in range(0, 64, 5):
        kind, alone = mixed_request(demo_server, i)
        if kind == 3:
            assert all(
                abs(x - y) < 1e-5 for a, b in zip(alone, together[i][1], strict=True) for x, y in zip(a, b, strict=True)
            )
        elif kind == 4:
            assert all(
                a["label"] == b["label"] and abs(a["score"] - b["score"]) < 1e-5
                for a, b in zip(alone, together[i][1], strict=True)
            )
        else:
            assert together[i] == (kind, alone)
    eventually(lambda: demo_server.metric("triptych_kv_blocks_used") == 0)
    eventually(lambda: demo_server.metric("triptych_requests_running") == 0)


def test_a_client_that_leaves_a_stream_frees_its_blocks(demo_server: RunningServer) -> None:
    cancelled = demo_server.metric("triptych_requests_cancelled_total")
    body = LONG | {"prompt": [LONG["prompt"]] * 8}
    with httpx.stream("POST", f"{demo_server.url}/generate", json=body, timeout=HANG_SECONDS) as response:
        reading = events(response)
        next(reading)
        eventually(lambda: demo_server.metric("triptych_kv_blocks_used", pool="self") > 0)
    eventually(lambda: demo_server.metric("triptych_kv_blocks_used", pool="self") == 0)
    eventually(lambda: demo_server.metric("triptych_requests_cancelled_total") > cancelled)


def test_a_client_that_leaves_without_streaming_frees_its_blocks(demo_server: RunningServer) -> None:
    cancelled = demo_server.metric("triptych_requests_cancelled_total")
    body = LONG | {"prompt": [LONG["prompt"]] * 8, "stream": False}
    with open_request(f"{demo_server.url}/generate", json=body):
        eventually(lambda: demo_server.metric("triptych_kv_blocks_used", pool="self") > 0)
    eventually(lambda: demo_server.metric("triptych_requests_cancelled_total") > cancelled)
    eventually(lambda: demo_server.metric("triptych_kv_blocks_used", pool="self") == 0)


def test_a_killed_worker_ends_streams_with_an_error_and_is_replaced(forked_server: RunningServer) -> None:
    worker = forked_server.worker()
    started = threading.Barrier(9)

    def read() -> list[tuple[str, object]]:
        with httpx.stream("POST", f"{forked_server.url}/generate", json=LONG, timeout=HANG_SECONDS) as response:
            assert response.status_code == 200
            received = []
            for event in events(response):
                received.append(event)
                if len(received) == 1:
                    started.wait(HANG_SECONDS)
            return received

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read) for _ in range(8)]
        started.wait(HANG_SECONDS)
        worker.send_signal(signal.SIGKILL)
        for reader in readers:
            *_, last = reader.result(HANG_SECONDS)
            assert last[0] == "error" and last[1]["error"]["code"] == "engine_error"
            assert all(name == "token" for name, _ in reader.result()[:-1])
    forked_server.wait_ready()
    assert forked_server.worker().pid != worker.pid
    answer = forked_server.post("/generate", json={"prompt": "The old fox", "max_new_tokens": 8})
    assert answer.status_code == 200, answer.text
    assert forked_server.metric("triptych_worker_restarts_total") == 1
    eventually(lambda: forked_server.metric("triptych_kv_blocks_used") == 0)
    assert forked_server.metric("triptych_streams_open") == 0


def test_sigterm_drains_and_leaves_no_process(own_server: RunningServer) -> None:
    worker = own_server.worker()
    with httpx.stream(
        "POST", f"{own_server.url}/generate", json=LONG | {"n": 1, "max_new_tokens": 64}, timeout=HANG_SECONDS
    ) as response:
        reading = events(response)
        next(reading)
        own_server.process.send_signal(signal.SIGTERM)
        *_, last = reading
        assert last[0] in {"done", "error"}
    assert own_server.process.wait(HANG_SECONDS) == 0
    eventually(lambda: is_gone(worker))


def test_a_killed_server_leaves_no_worker(own_server: RunningServer) -> None:
    worker = own_server.worker()
    own_server.process.kill()
    own_server.process.wait()
    eventually(lambda: is_gone(worker))


def test_one_of_two_workers_is_killed_and_the_other_goes_on() -> None:
    record = one_of_two_killed(kills=1, streams=16)
    assert not record.num_failures, record.failures
