"""Quick tests of the promises detect planted bugs: each passes without its bug, and fails with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.errors import Overloaded
from server.ipc.client.queue import Queue
from server.ipc.wire.generate_messages import Finished, Hypothesis, Tokens
from tests.api import test_stored_responses as stored
from tests.api.conftest import Bench
from tests.chaos.bugs import planted
from tests.chaos.checks import answers, engine
from tests.chaos.record import Record
from tests.invariance import test_alone_equals_batched as batched
from tests.invariance import test_bad_row_fails_alone as bad_row
from tests.weights import test_manifest as manifest
from tests.weights import test_read as reading
from tests.wire.test_hostile import CANARY

BOTH = pytest.mark.parametrize("with_bug", [False, True], ids=["as it is", "with the bug"])


def expecting(bug: str, with_bug: bool) -> Any:
    """Context manager whose block must fail with the planted bug, and must pass without it."""
    return _Failing(bug) if with_bug else nullcontext()


class _Failing:
    def __init__(self, bug: str) -> None:
        self._planted = planted(bug)
        self._failing = pytest.raises((AssertionError, KeyError))

    def __enter__(self) -> None:
        self._planted.__enter__()
        self._failing.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        try:
            return self._failing.__exit__(*error)
        finally:
            self._planted.__exit__(None, None, None)


def passed(record: Record) -> None:
    assert record.passed, record.failures


@BOTH
@pytest.mark.parametrize(
    ("check", "bug"),
    [
        (lambda: engine.interleavings(4, 100), "released-blocks-are-lost"),
        (lambda: answers.splits(60), "incomplete-characters-are-sent"),
        (lambda: answers.frames(2048), "frames-are-not-escaped"),
    ],
    ids=["5", "17", "18"],
)
def test_checks_without_a_server(check: Callable[[], Record], bug: str, with_bug: bool) -> None:
    with expecting(bug, with_bug):
        passed(check())


@BOTH
def test_bad_row(pairs: Any, poison: Any, with_bug: bool) -> None:
    with expecting("values-that-are-not-finite-pass", with_bug):
        bad_row.test_one_poisoned_request_of_sixteen_fails_alone(pairs, poison, "llama", 2)


@BOTH
def test_alone_equals_batched(pairs: Any, with_bug: bool) -> None:
    pair = pairs("llama")
    requests = batched.mixed_requests(pair)[:8]
    alone = {
        batched.id_of(request): batched.run(pair.engine(), [request]).texts(batched.id_of(request))
        for request in requests
    }
    with expecting("noise-depends-on-the-batch", with_bug):
        assert batched.answers(batched.run(pair.engine(), requests)) == alone


@BOTH
def test_flipped_bit(tmp_path: Path, with_bug: bool) -> None:
    with expecting("the-manifest-is-not-read", with_bug), _failing_as_assertion():
        manifest.test_flipped_bit_is_refused(tmp_path, 0)


@BOTH
def test_links(tmp_path: Path, with_bug: bool) -> None:
    with expecting("links-leave-the-directory", with_bug), _failing_as_assertion():
        reading.test_links_to_other_repositories_and_missing_files_are_refused(tmp_path)


class _failing_as_assertion:
    """Context manager that turns every exception into an AssertionError, which `expecting` takes for a failed test.

    `pytest.raises` in a test fails with another exception.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and not issubclass(kind, AssertionError):
            raise AssertionError(str(error)) from error


@BOTH
async def test_echo(bench: Bench, http: httpx.AsyncClient, with_bug: bool) -> None:
    bench.become_ready()
    with expecting("errors-quote-the-request", with_bug):
        answer = await http.post("/generate", json={"prompt": {"x": CANARY}})
        assert CANARY not in answer.text


@BOTH
async def test_bound(bench: Bench, http: httpx.AsyncClient, with_bug: bool) -> None:
    bench.become_ready()
    with expecting("an-error-has-no-words", with_bug):
        assert (await http.post("/generate", json={"prompt": "a", "n": 10**6})).status_code == 422


@BOTH
async def test_labels(bench: Bench, http: httpx.AsyncClient, with_bug: bool) -> None:
    with expecting("paths-become-labels", with_bug):
        await http.get(f"/{CANARY}")
        assert CANARY not in (await http.get("/metrics")).text


@BOTH
async def test_swapped_answers(bench: Bench, http: httpx.AsyncClient, with_bug: bool) -> None:
    bench.become_ready()
    posts, rows = [], []
    for _ in range(2):
        posts.append(asyncio.create_task(http.post("/generate", json={"prompt": "a", "model": "decoder"})))
        rows += await bench.sent_rows()
    with expecting("answers-are-swapped", with_bug):
        ends = [
            Finished(row.sequence_id, [Hypothesis([token], "length")], 0, 0, 0, 1)
            for row, token in zip(rows, (97, 98), strict=True)
        ]
        bench.output(finished=ends)
        texts = [(await post).json()["choices"][0]["text"] for post in posts]
        assert texts == ["^", "_"]


@BOTH
def test_queue(with_bug: bool) -> None:
    def fill() -> None:
        queue = Queue(2, 100)
        queue.enter(2, 20)
        with pytest.raises(Overloaded):
            queue.enter(1, 1)

    with expecting("overload-is-queued", with_bug), _failing_as_assertion():
        fill()


@BOTH
def test_keys(with_bug: bool) -> None:
    from server.api_keys import load_keys

    keys = load_keys(["first-key"], None)
    with expecting("no-key-is-a-key", with_bug):
        assert keys.find(b"first-key") is not None and keys.find(b"") is None


@BOTH
async def test_lost_worker(bench: Bench, http: httpx.AsyncClient, with_bug: bool) -> None:
    bench.become_ready()
    posted = asyncio.create_task(http.post("/generate", json={"prompt": "a", "model": "decoder"}))
    (row,) = await bench.sent_rows()
    bench.output(tokens=[Tokens(row.sequence_id, [100])])
    with expecting("lost-worker-tells-nobody", with_bug):
        bench.client.on_lost()
        assert bench.client.num_open_sequences == 0
    bench.client.fail_all("engine_error", "the end of the test")
    assert (await posted).status_code == 500


@BOTH
@pytest.mark.parametrize(
    ("check", "bug"),
    [
        (stored.test_a_record_is_found_by_its_owner_only, "stored-responses-know-no-keys"),
        (stored.test_a_key_never_drops_records_of_another_key, "stored-responses-have-no-bounds"),
        (stored.test_records_are_dropped_when_their_time_is_over, "stored-responses-have-no-bounds"),
    ],
    ids=["key", "bytes", "time"],
)
def test_stored_responses(check: Callable[[], None], bug: str, with_bug: bool) -> None:
    with expecting(bug, with_bug):
        check()
