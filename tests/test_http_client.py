"""The HTTP client of the benchmarks reads responses that arrive in pieces of any size."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from benchmarks.http_client import send_all

EVENTS = 5
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def stream() -> bytes:
    """A chunked response with several token events and a final event."""
    frames = [b'event: token\ndata: {"id":%d}\n\n' % number for number in range(EVENTS)]
    frames.append(b'event: done\ndata: {"usage":{"completion_tokens":%d}}\n\n' % EVENTS)
    return CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames) + b"0\r\n\r\n"


def whole(status: bytes = b"200 OK", body: bytes = b'{"answer": 1}') -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


class Server:
    """A fake HTTP server that answers every request with the same bytes. The longer a request, the later its answer.

    answer: bytes of the response.
    piece: number of bytes that are sent at once.
    answers: number of responses before the server closes a connection.
    """

    def __init__(self, answer: bytes, piece: int, answers: int = 1 << 20) -> None:
        self._answer, self._piece, self._answers = answer, piece, answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.requests: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        for _ in range(self._answers):
            if not (request := connection.recv(1 << 16)):
                return
            self.requests.append(request)
            time.sleep(len(request) / 1e5)
            for start in range(0, len(self._answer), self._piece):
                connection.sendall(self._answer[start : start + self._piece])
                time.sleep(0.0006)
        connection.close()


@pytest.mark.parametrize("piece", [7, 40, 1 << 16])
def test_all_events_of_a_split_stream_are_counted(piece: int) -> None:
    server = Server(stream(), piece)
    answers, seconds = send_all(server.port, [("/generate", b"%d" % number) for number in range(5)], in_flight=2)
    assert [len(answer.times) for answer in answers] == [EVENTS] * 5 and seconds > 0
    assert all(answer.completion_tokens == EVENTS for answer in answers)
    assert all(answer.started <= answer.times[0] <= answer.times[-1] <= answer.ended for answer in answers)
    assert sorted(request.partition(b"\r\n\r\n")[2] for request in server.requests) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("piece", [7, 1 << 16])
def test_response_with_a_content_length_is_complete(piece: int) -> None:
    answers, _ = send_all(Server(whole(), piece).port, [("/embed", b"{}")] * 3, in_flight=4)
    assert [answer.body for answer in answers] == [b'{"answer": 1}'] * 3


@pytest.mark.parametrize("piece", [7, 1 << 16])
def test_chunks_of_a_response_are_joined(piece: int) -> None:
    body = b"[" + b", ".join(b"%d" % number for number in range(2000)) + b"]"
    parts = [body[:1], body[1:5000], body[5000:]]
    answer = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    answers, _ = send_all(Server(answer, piece).port, [("/embed", b"{}")] * 2, in_flight=2)
    assert [answer.body for answer in answers] == [body] * 2


def test_server_may_close_idle_connections() -> None:
    server = Server(stream(), 1 << 16, answers=1)
    bodies = [b"x" * (1 + 1000 * number) for number in range(8)]
    answers, _ = send_all(server.port, [("/generate", body) for body in bodies], in_flight=8)
    assert [answer.completion_tokens for answer in answers] == [EVENTS] * 8


def test_error_status_and_incomplete_stream_are_refused() -> None:
    with pytest.raises(RuntimeError, match="429"):
        send_all(Server(whole(b"429 Too Many Requests"), 1 << 16).port, [("/generate", b"{}")], in_flight=1)
    cut = CHUNKED + b"3\r\n: x\r\n0\r\n\r\n"
    (answer,), _ = send_all(Server(cut, 1 << 16).port, [("/generate", b"{}")], in_flight=1)
    with pytest.raises(RuntimeError, match="no final event"):
        _ = answer.completion_tokens
