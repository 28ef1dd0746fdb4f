"""Lists of up to `max_items` are accepted with any queue limits: the server splits them and serves others meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.waiting import eventually
from tests.wire.conftest import Process, parse_events


@pytest.fixture(scope="module")
def narrow(checkpoints: list[str]) -> Iterator[Process]:
    """A server whose queue has much less room than the longest list needs."""
    server = Process(*checkpoints, "--max-queue-requests", "64", "--max-queue-tokens", "2000")
    try:
        yield server.wait_ready()
    finally:
        server.stop()


def texts(count: int) -> list[str]:
    return [f"text {number}" for number in range(count)]


def test_500_translations_in_one_request(narrow: Process) -> None:
    answer = narrow.post("/translate", json={"inputs": texts(500)})
    assert answer.status_code == 200, answer.text
    assert [translation["text"] for translation in answer.json()["translations"]] == texts(500)


def test_a_streamed_list_is_complete_and_in_order(narrow: Process) -> None:
    answer = narrow.post("/generate", json={"model": "decoder", "prompt": texts(200), "stream": True})
    events = parse_events(answer.text)
    assert events[-1][0] == "done"
    found = dict.fromkeys(range(200), "")
    for name, data in events[:-1]:
        assert name == "token"
        found[data["index"]] += data["text"]
    assert [*found.values()] == texts(200) == [event["text"] for event in events[-1][1]["choices"]]


def test_1024_embeddings_in_one_request(narrow: Process) -> None:
    one_by_one = [narrow.post("/embed", json={"model": "embedder", "inputs": text}).json()[0] for text in texts(12)]
    together = narrow.post("/embed", json={"model": "embedder", "inputs": texts(1024)})
    assert together.status_code == 200 and len(together.json()) == 1024
    assert together.json()[:12] == one_by_one


def test_other_requests_are_answered_beside_a_large_list(narrow: Process) -> None:
    body = {"model": "decoder", "prompt": [f"{text}&" for text in texts(300)]}
    with ThreadPoolExecutor() as pool:
        large = pool.submit(narrow.post, "/generate", json=body)
        unfinished = ("triptych_requests_waiting", "triptych_requests_running")
        eventually(lambda: sum(map(narrow.metric, unfinished)) >= 200)
        answers = [narrow.post("/generate", json={"model": "decoder", "prompt": "abc"}) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200] * 5
        narrow.worker().send_signal(signal.SIGUSR1)
        assert len(large.result().json()["choices"]) == 300


def test_the_limits_that_apply_are_told(narrow: Process, start: Callable[..., Process]) -> None:
    limits = narrow.get("/info").json()["limits"]
    assert (limits["max_items"], limits["max_queue_requests"], limits["max_queue_tokens"]) == (1024, 64, 2000)
    by_default = start().wait_ready().get("/info").json()["limits"]
    assert by_default["max_queue_requests"] >= 4096 and by_default["max_queue_tokens"] >= 1 << 19


def test_a_burst_of_200_clients_with_16_prompts_each_waits(start: Callable[..., Process]) -> None:
    server = start().wait_ready()
    body = {"model": "decoder", "prompt": ["a short prompt"] * 16, "max_new_tokens": 4}
    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(lambda _: server.post("/generate", json=body), range(200)))
    assert [answer.status_code for answer in answers] == [200] * 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"n": 5}, "n"), ({"best_of": 5}, "best_of"), ({"num_beams": 5}, "num_beams")],
    ids=lambda case: str(case),
)
def test_more_sequences_than_the_limit_are_refused(narrow: Process, fields: dict[str, int], param: str) -> None:
    limit = narrow.get("/info").json()["limits"]["max_sequences"]
    assert limit == 4096
    body = {"model": "decoder", "prompt": ["abc"] * 820, "max_new_tokens": 1, **fields}
    answer = narrow.post("/generate", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param), answer.text
    assert "4,100 sequences; the limit is 4,096" in answer.json()["error"]["message"]
