"""Tests of `pause`: a thread that makes many short calls sleeps now and then, and an event loop never does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from server.text.tokenizers.load import load_tokenizer
from server.text.tokens import lock_pauses
from server.text.tokens.lock_pauses import INTERVAL_SECONDS, PAUSE_SECONDS, pause

DEMO = Path(__file__).parents[2] / "weights" / "demo"


class _Clock:
    """A test clock, which advances by `step` seconds each time it is read, and by the time that is slept."""

    def __init__(self, step: float) -> None:
        self.now, self.step, self.slept = 1.0, step, list[float]()

    def monotonic(self) -> float:
        self.now += self.step
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


def _sleeps(calls: Callable[[], None], step: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Run `calls` in a new thread, and return how long it slept each time. step: seconds between two calls."""
    clock = _Clock(step)
    monkeypatch.setattr(lock_pauses, "time", SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep))
    thread = threading.Thread(target=calls)
    thread.start()
    thread.join()
    return clock.slept


def test_a_thread_pauses_once_in_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    def calls() -> None:
        for _ in range(1000):
            pause()

    slept = _sleeps(calls, INTERVAL_SECONDS / 10, monkeypatch)
    assert set(slept) == {PAUSE_SECONDS} and 90 <= len(slept) <= 101


def test_an_event_loop_never_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def calls() -> None:
        for _ in range(100):
            pause()

    assert _sleeps(lambda: asyncio.run(calls()), INTERVAL_SECONDS, monkeypatch) == []


def test_many_short_texts_are_encoded_and_decoded_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(DEMO / "translator-en-fr")
    ids = tokenizer.encode(["One two three."], offsets=False)[0].ids

    def encode() -> None:
        for offsets in (False, True):
            assert tokenizer.encode(["One two three."] * 10, offsets=offsets)[0].ids == ids

    def decode() -> None:
        for _ in range(10):
            assert tokenizer.decode(ids) == tokenizer.decode(ids)

    assert len(_sleeps(encode, 2 * INTERVAL_SECONDS, monkeypatch)) == 20
    assert len(_sleeps(decode, 2 * INTERVAL_SECONDS, monkeypatch)) == 20
