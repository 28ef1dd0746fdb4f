"""The Ray Serve application on a real cluster of two nodes. The tests run in this order, on one cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import httpx
import pytest

from tests.e2e.sse import events
from tests.ray.conftest import RunningCluster, engine_workers, helper_processes
from tests.waiting import HANG_SECONDS, eventually, is_gone, open_request

pytestmark = pytest.mark.ray

STORY = {"prompt": "Once upon a time", "max_new_tokens": 200, "temperature": 1.0}


def test_starts_with_one_replica_and_answers(cluster: RunningCluster) -> None:
    assert len(cluster.replica_names()) == 1
    generated = cluster.post("/generate", {"prompt": "Once upon a time", "max_new_tokens": 8, "temperature": 0})
    assert generated.status_code == 200, generated.text
    assert generated.json()["usage"]["completion_tokens"] == 8
    translated = cluster.post("/translate", {"inputs": "I am a student", "source_lang": "en", "target_lang": "fr"})
    assert translated.status_code == 200, translated.text
    assert [translation["text"] for translation in translated.json()["translations"]] == ["Je suis un étudiant"]
    (vector,) = cluster.post("/embed", {"inputs": ["a cat"]}).json()
    assert sum(x * x for x in vector) == pytest.approx(1, abs=1e-5)


def _chat(number: int) -> tuple[str, dict[str, Any]]:
    """A request whose messages a helper process renders."""
    messages = [{"role": "user", "content": f"Tell a story {number}"}]
    return "/v1/chat/completions", {"messages": messages, "max_tokens": 4}


def _pattern(number: int) -> tuple[str, dict[str, Any]]:
    """A request whose regular expression a helper process compiles. number: makes the expression a new one."""
    return "/generate", {
        "prompt": "Once upon a time",
        "max_new_tokens": 4,
        "response_format": {"type": "regex", "pattern": f"[0-9]{{{number}}}"},
    }


@pytest.mark.parametrize(
    ("script", "request_of"), [("chat_process.py", _chat), ("grammar_process.py", _pattern)], ids=["chat", "grammar"]
)
def test_a_stopped_helper_is_no_fault_of_the_client(
    cluster: RunningCluster, script: str, request_of: Callable[[int], tuple[str, dict[str, Any]]]
) -> None:
    (replica,) = cluster.replica_processes()
    assert cluster.post(*request_of(2)).status_code == 200
    (helper,) = helper_processes(replica, script)
    helper.send_signal(signal.SIGSTOP)
    refused = cluster.post(*request_of(3))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready"), refused.text
    assert int(refused.headers["retry-after"]) >= 1
    assert is_gone(helper)
    assert cluster.post(*request_of(3)).status_code == 200
    (helper,) = helper_processes(replica, script)
    helper.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(cluster.post, *request_of(4))
        helper.send_signal(signal.SIGCONT)
        assert answer.result().status_code == 200
    assert helper_processes(replica, script) == [helper]
    assert replica in cluster.replica_processes()


def test_events_arrive_one_by_one(cluster: RunningCluster) -> None:
    chunks, seen = 0, []
    url = cluster.url + "/generate"
    with httpx.stream(
        "POST", url, json=STORY | {"stream": True}, headers=cluster.headers, timeout=HANG_SECONDS
    ) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        for chunk in answer.iter_raw():
            chunks += 1
            seen.append(chunk.count(b"\n\n"))
    assert b"event: done" in chunk
    assert chunks > 10 and seen[0] <= 2, f"events in each chunk: {seen}"


def test_a_disconnect_ends_the_sequences(cluster: RunningCluster) -> None:
    cancelled = cluster.metric("triptych_requests_cancelled_total")
    long = STORY | {"n": 8, "ignore_eos": True}
    with httpx.stream(
        "POST", cluster.url + "/generate", json=long | {"stream": True}, headers=cluster.headers, timeout=HANG_SECONDS
    ) as answer:
        next(answer.iter_raw())
    eventually(lambda: cluster.metric("triptych_requests_cancelled_total") > cancelled)
    cancelled = cluster.metric("triptych_requests_cancelled_total")
    with open_request(cluster.url + "/generate", json=long, headers=cluster.headers):
        eventually(lambda: cluster.metric("triptych_requests_running") > 0)
    eventually(lambda: cluster.metric("triptych_requests_cancelled_total") > cancelled)
    eventually(lambda: cluster.metric("triptych_requests_running") + cluster.metric("triptych_requests_waiting") == 0)


def test_keys_errors_and_request_ids_are_as_without_ray(cluster: RunningCluster) -> None:
    refused = cluster.get("/info", headers={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")
    assert cluster.get("/metrics", headers={}).status_code == 401
    assert cluster.get("/ready", headers={}).json() == {"status": "ready"}
    assert cluster.get("/docs", headers={}).status_code == 200
    missing = cluster.get("/nothing", headers=cluster.headers | {"x-request-id": "mine"})
    assert (missing.status_code, missing.json()["error"]["request_id"]) == (404, "mine")
    assert missing.headers.get_list("x-request-id") == ["mine"]
    large = cluster.post("/generate", {"prompt": "x" * (3 << 20)})
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    assert large.headers.get_list("x-request-id") == [large.json()["error"]["request_id"]]
    invalid = cluster.post("/generate", {"prompt": 1})
    assert (invalid.status_code, invalid.json()["error"]["param"]) == (422, "prompt")


def test_a_dead_worker_is_replaced_inside_its_replica(cluster: RunningCluster) -> None:
    (replica,) = cluster.replica_processes()
    (worker,) = engine_workers(replica)
    restarts = cluster.metric("triptych_worker_restarts_total")
    worker.kill()
    eventually(lambda: cluster.metric("triptych_worker_restarts_total") > restarts)
    # The request waits for the next worker.
    assert cluster.post("/generate", STORY | {"max_new_tokens": 5}).status_code == 200
    assert replica in cluster.replica_processes()
    assert len(engine_workers(replica)) == 1


@dataclass
class Stream:
    """The events of a stream that a client has received. whole: whether the last one is `done`."""

    events: list[str] = field(default_factory=list)
    status: int = 0
    broken: bool = False

    @property
    def whole(self) -> bool:
        return bool(self.events) and self.events[-1] == "done"


@dataclass
class Load:
    """Clients that send requests until `stopped` is set. begun: set when a stream has sent its first event."""

    cluster: RunningCluster
    stopped: Event = field(default_factory=Event)
    begun: Event = field(default_factory=Event)
    answers: list[httpx.Response] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)

    def ask(self) -> None:
        while not self.stopped.is_set():
            self.answers.append(self.cluster.post("/generate", STORY | {"max_new_tokens": 60}))

    def stream(self) -> None:
        while not self.stopped.is_set():
            self.streams.append(self._stream_once())

    def _stream_once(self) -> Stream:
        seen = Stream()
        body, headers = STORY | {"stream": True}, self.cluster.headers
        try:
            with httpx.stream(
                "POST", self.cluster.url + "/generate", json=body, headers=headers, timeout=HANG_SECONDS
            ) as answer:
                seen.status = answer.status_code
                for name, _ in events(answer):
                    seen.events.append(name)
                    self.begun.set()
        except httpx.TransportError:
            seen.broken = True
        return seen


def run_load(cluster: RunningCluster, during: Callable[[Load], None]) -> Load:
    """Run clients, call `during` once a stream has begun, stop the clients and wait for their last answers."""
    load = Load(cluster)
    with ThreadPoolExecutor(20) as pool:
        clients = [pool.submit(client) for client in [load.ask] * 12 + [load.stream] * 8]
        try:
            assert load.begun.wait(HANG_SECONDS)
            during(load)
        finally:
            load.stopped.set()
        for client in clients:
            client.result()
    return load


def check_nothing_lost(load: Load) -> None:
    """Every request has an answer, except streams that broke after an event. No stream that broke looks complete."""
    cut = sum(stream.broken for stream in load.streams)
    print(f"{len(load.answers)} answers, {len(load.streams)} streams, {cut} of them cut")
    assert {answer.status_code for answer in load.answers} == {200}
    assert {stream.status for stream in load.streams} == {200}
    for stream in load.streams:
        assert stream.whole != (stream.broken or "error" in stream.events), stream
        assert stream.events or not stream.broken, "a stream without any event was not sent again"


def test_waiting_sequences_start_a_replica_on_the_other_node(cluster: RunningCluster) -> None:
    load = run_load(cluster, lambda load: eventually(lambda: len(cluster.replica_names()) == 2))
    check_nothing_lost(load)
    assert all(stream.whole for stream in load.streams)


def kill_process(cluster: RunningCluster) -> None:
    cluster.replica_processes()[0].kill()


def kill_actor(cluster: RunningCluster) -> None:
    import ray

    name = min(cluster.replica_names())
    ray.kill(ray.get_actor(f"SERVE_REPLICA::triptych#triptych#{name}", namespace="serve"))


@pytest.mark.parametrize("kill", [kill_process, kill_actor])
def test_a_killed_replica_loses_nothing_that_had_not_begun(
    cluster: RunningCluster, kill: Callable[[RunningCluster], None]
) -> None:
    names = cluster.replica_names()
    workers = {replica: engine_workers(replica) for replica in cluster.replica_processes()}
    assert (len(names), [len(children) for children in workers.values()]) == (2, [1, 1])
    lost = cluster.log_text().count("the replica was lost")

    def kill_one(load: Load) -> None:
        kill(cluster)
        eventually(lambda: any(is_gone(replica) for replica in workers))
        (victim,) = [replica for replica in workers if is_gone(replica)]
        eventually(lambda: all(is_gone(worker) for worker in workers[victim]))
        eventually(lambda: len(cluster.replica_names()) == 2 and cluster.replica_names() != names)

    check_nothing_lost(run_load(cluster, kill_one))
    assert cluster.log_text().count("the replica was lost") > lost, "no request was on the replica"


def test_a_lost_node_takes_its_replica_and_no_request_with_it(cluster: RunningCluster) -> None:
    workers = {replica: engine_workers(replica) for replica in cluster.replica_processes()}
    assert len(workers) == 2

    def lose_node(load: Load) -> None:
        cluster.cluster.remove_node(cluster.second_node, allow_graceful=False)
        eventually(lambda: any(is_gone(replica) for replica in workers))
        (victim,) = [replica for replica in workers if is_gone(replica)]
        eventually(lambda: all(is_gone(worker) for worker in workers[victim]))
        answered = len(load.answers)
        eventually(lambda: len(load.answers) > answered + 12)

    check_nothing_lost(run_load(cluster, lose_node))
    assert cluster.get("/ready").status_code == 200
