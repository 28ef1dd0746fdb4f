"""Dear and hostile requests on a real cluster."""

from __future__ import annotations

import json
import signal

import httpx
import pytest

from tests.ray.conftest import RunningCluster, engine_workers
from tests.waiting import HANG_SECONDS, eventually, open_request
from tests.wire.test_hostile import CANARY, HOSTILE

pytestmark = pytest.mark.ray

PATHS = ("/generate", "/v1/chat/completions", "/v1/responses", "/embed", "/translate", "/rerank", "/api/chat")
DEAR = {"prompt": ["Once"] * 1024, "max_tokens": 1, "n": 4}
SHORT = {"prompt": "Once upon a time", "max_tokens": 4}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused_and_not_echoed(cluster: RunningCluster, name: str) -> None:
    body = HOSTILE[name].replace(b"%s", CANARY.encode())
    headers = cluster.headers | {"content-type": "application/json"}
    for path in PATHS:
        answer = httpx.post(cluster.url + path, content=body, headers=headers, timeout=HANG_SECONDS)
        assert 400 <= answer.status_code < 500, (path, answer.text)
        assert CANARY not in json.dumps(answer.json())
    assert cluster.post("/v1/completions", SHORT).status_code == 200
    assert CANARY not in cluster.log_text()


@pytest.mark.parametrize("encoding", ["gzip", "br", "x"])
def test_encoded_bodies_are_refused(cluster: RunningCluster, encoding: str) -> None:
    answer = cluster.post("/v1/completions", SHORT, headers=cluster.headers | {"content-encoding": encoding})
    assert answer.status_code == 415, answer.text


@pytest.mark.parametrize("path", ["//info", "/%69nfo", "/health/../info", "/docs/..;/info", "/INFO", "/info%00"])
def test_another_spelling_of_a_path_needs_the_key(cluster: RunningCluster, path: str) -> None:
    for host in ("localhost", "localhost/health?", "a.example"):
        answer = httpx.get(cluster.url + path, headers={"host": host}, timeout=HANG_SECONDS)
        assert answer.status_code in (400, 401, 404), (host, answer.text)
        assert "models" not in answer.text


def test_no_call_has_more_rows_than_the_limit(cluster: RunningCluster) -> None:
    many = cluster.post("/v1/completions", DEAR | {"n": 5})
    assert many.status_code == 400 and "the limit is 4,096" in many.text, many.text


def test_a_dear_request_that_is_given_up_leaves_nothing(cluster: RunningCluster) -> None:
    body = DEAR | {"max_tokens": 200, "ignore_eos": True}
    with open_request(cluster.url + "/v1/completions", json=body, headers=cluster.headers):
        eventually(lambda: cluster.metric("triptych_requests_running") > 0)
    eventually(lambda: cluster.metric("triptych_requests_running") + cluster.metric("triptych_requests_waiting") == 0)
    assert cluster.post("/v1/completions", SHORT).status_code == 200


def test_a_short_request_is_answered_while_a_dear_one_runs(cluster: RunningCluster) -> None:
    body = DEAR | {"max_tokens": 100, "ignore_eos": True}
    with open_request(cluster.url + "/v1/completions", json=body, headers=cluster.headers):
        eventually(lambda: cluster.metric("triptych_requests_running") > 0)
        assert cluster.post("/v1/completions", SHORT).status_code == 200
        assert cluster.post("/embed", {"inputs": ["a cat"]}).status_code == 200
        assert cluster.metric("triptych_requests_running") > 0, "the dear request ended first"
    eventually(lambda: cluster.metric("triptych_requests_running") + cluster.metric("triptych_requests_waiting") == 0)


def test_a_stopped_worker_is_replaced_inside_its_replica(cluster: RunningCluster) -> None:
    replicas = cluster.replica_processes()
    (worker,) = engine_workers(replicas[0])
    restarts = cluster.metric("triptych_worker_restarts_total")
    worker.send_signal(signal.SIGSTOP)
    # A request that the stopped worker received fails when the worker is replaced. A later request waits for the next
    # worker.
    answer = cluster.post("/v1/completions", SHORT)
    assert answer.status_code in (200, 500, 503), answer.text
    eventually(lambda: cluster.metric("triptych_worker_restarts_total") > restarts)
    assert cluster.post("/v1/completions", SHORT).status_code == 200
    assert replicas[0] in cluster.replica_processes()
