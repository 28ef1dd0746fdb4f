"""A worker sends heartbeats while it loads models."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from server.engine.process import loading_beats
from server.engine.process.loading_beats import LoadingBeats
from server.engine.process.worker_socket import WorkerSocket
from server.ipc.wire.frames import FRAME_HEADER
from server.ipc.wire.messages import decode_from_worker
from server.ipc.wire.worker_messages import Loading, Progress
from tests.waiting import HANG_SECONDS


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, WorkerSocket]]:
    monkeypatch.setattr(loading_beats, "BEAT_SECONDS", 0.005)
    server, worker = socket.socketpair()
    server.settimeout(HANG_SECONDS)
    with server, worker:
        yield server, WorkerSocket(worker)


def read(server: socket.socket) -> object:
    (length,) = FRAME_HEADER.unpack(server.recv(FRAME_HEADER.size, socket.MSG_WAITALL))
    return decode_from_worker(server.recv(length, socket.MSG_WAITALL))


def test_beats_arrive_until_they_are_stopped(ends: tuple[socket.socket, WorkerSocket]) -> None:
    server, connection = ends
    beats = LoadingBeats(connection, 3)
    try:
        assert [read(server) for _ in range(3)] == [Loading(3)] * 3
    finally:
        beats.stop()
    beats.stop()
    connection.send(Progress(3, "llm", 1, 2))
    while (message := read(server)) == Loading(3):
        pass
    assert message == Progress(3, "llm", 1, 2)


def test_a_beat_never_cuts_another_message(ends: tuple[socket.socket, WorkerSocket]) -> None:
    server, connection = ends
    beats = LoadingBeats(connection, 3)
    try:
        for number in range(3000):
            connection.send(Progress(3, "llm", number, 3000))
            while True:
                message = read(server)
                if isinstance(message, Progress):
                    break
                assert message == Loading(3)
            assert message.done_bytes == number
    finally:
        beats.stop()


def test_a_beat_to_a_server_that_is_gone_does_not_interrupt_loading(
    ends: tuple[socket.socket, WorkerSocket],
) -> None:
    server, connection = ends
    server.close()
    beats = LoadingBeats(connection, 3)
    try:
        beats._send(0, None)
    finally:
        beats.stop()
