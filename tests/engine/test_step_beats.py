"""A worker sends heartbeats during a long step."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from itertools import islice

import pytest

from server.engine.process import step_beats
from server.engine.process.step_beats import BEAT_SECONDS, MAX_STEP_SECONDS, StepBeats, Watch
from server.engine.process.worker_socket import WorkerSocket
from server.ipc.wire.frames import FrameReader
from server.ipc.wire.messages import FromWorker, decode_from_worker
from server.ipc.wire.worker_messages import Computing, Progress
from tests.waiting import HANG_SECONDS


def messages_at(server: socket.socket) -> Iterator[FromWorker]:
    """Yield the messages that arrive at the server's end of the socket."""
    reader = FrameReader(decode_from_worker)
    while True:
        yield from reader.read(server.recv(1 << 16))


def test_a_step_that_is_one_call_of_native_code_sends_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_beats, "BEAT_SECONDS", 0.005)
    server, worker = socket.socketpair()
    server.settimeout(HANG_SECONDS)
    received: list[object] = []
    with server, worker:
        connection, arriving = WorkerSocket(worker), messages_at(server)
        beats = StepBeats(connection, 3)
        reader = threading.Thread(target=lambda: received.extend(islice(arriving, 3)), daemon=True)
        reader.start()
        while reader.is_alive():
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", 20_000)
        beats.stop()
        assert received == [Computing(3)] * 3
        connection.send(Progress(3, "llm", 1, 2))
        assert next(message for message in arriving if message != Computing(3)) == Progress(3, "llm", 1, 2)


def test_a_beat_never_cuts_another_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_beats, "BEAT_SECONDS", 0.0005)
    monkeypatch.setattr(Watch, "is_computing", lambda *_: True)
    server, worker = socket.socketpair()
    server.settimeout(HANG_SECONDS)
    with server, worker:
        connection = WorkerSocket(worker)
        beats = StepBeats(connection, 3)
        numbers: list[int] = []

        def read_all() -> None:
            progress = (message for message in messages_at(server) if isinstance(message, Progress))
            numbers.extend(message.done_bytes for message in islice(progress, 500))

        reader = threading.Thread(target=read_all, daemon=True)
        reader.start()
        for number in range(500):
            connection.send(Progress(3, "m" * 5000, number, 500))
        while reader.is_alive():
            connection.receive(0.001)
        beats.stop()
        assert numbers == list(range(500))


def test_a_thread_that_waits_sends_no_beat() -> None:
    """No heartbeat is sent if the main thread uses no processor time, as in a deadlock or after SIGSTOP."""
    watch = Watch(0.0)
    assert watch.is_computing(BEAT_SECONDS, 0.4, 0)
    for number in range(2, 100):
        assert not watch.is_computing(number * BEAT_SECONDS, 0.4, 0)


def test_a_thread_with_a_small_share_of_a_core_computes() -> None:
    watch = Watch(0.0)
    assert all(watch.is_computing(number * BEAT_SECONDS, 0.02 * number, 0) for number in range(1, 20))


def test_messages_replace_beats() -> None:
    watch, used = Watch(0.0), 0.0
    for number in range(1, 20):
        used += BEAT_SECONDS
        assert not watch.is_computing(number * BEAT_SECONDS, used, number), "its messages show that the worker lives"


def test_a_step_without_end_is_given_up() -> None:
    watch, now = Watch(0.0), 0.0
    while watch.is_computing(now := now + BEAT_SECONDS, now, 0):
        assert now < MAX_STEP_SECONDS + BEAT_SECONDS
    assert now > MAX_STEP_SECONDS
    assert not watch.is_computing(now + 1, now + 1, 1)
    assert watch.is_computing(now + 2, now + 2, 1), "a message begins the time again"


def test_a_step_with_a_long_text_may_take_longer() -> None:
    watch, now = Watch(0.0), 0.0
    while watch.is_computing(now := now + BEAT_SECONDS, now, 0, 2 * MAX_STEP_SECONDS):
        assert now < 2 * MAX_STEP_SECONDS + BEAT_SECONDS
    assert now > 2 * MAX_STEP_SECONDS
