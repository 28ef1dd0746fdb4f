"""The headers `Host` and `Origin`, over raw sockets: requests from other sites' pages, load balancers and nginx."""

from __future__ import annotations

import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from tests.waiting import HANG_SECONDS
from tests.wire.conftest import Process

NAME = "ai.example.com"
ORIGIN = f"https://{NAME}"
BODY = b'{"model": "decoder", "inputs": "ab"}'


class RawConnection:
    """A connection that sends exactly the given headers, and that stays open."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), HANG_SECONDS)
        self._reader = self._socket.makefile("rb")

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._socket.close()

    def ask(self, line: str, *headers: str, body: bytes = b"", length: int | None = None) -> tuple[int, bytes]:
        """Send a request; returns status and body of the answer.

        length: the value of `Content-Length`, by default the length of the body.
        """
        fields = [*headers, f"content-length: {len(body) if length is None else length}"]
        if body:
            fields.append("content-type: application/json")
        self._socket.sendall("\r\n".join([line, *fields, "", ""]).encode() + body)
        status = int(self._reader.readline().split()[1])
        length = 0
        while (field := self._reader.readline().strip()) != b"":
            name, _, value = field.partition(b": ")
            if name.lower() == b"content-length":
                length = int(value)
        return status, self._reader.read(length)


def test_a_foreign_page_is_refused_before_its_body_arrives(shared_server: Process) -> None:
    """A browser sends a form of another site without asking the server first. The server reads none of its bytes."""
    for path in ("/translate", "/detect", "/v2/translate", "/v1/audio/transcriptions", "/api/generate", "/generate"):
        for fields in ((f"host: {NAME}",), ("host: localhost", f"origin: {ORIGIN}"), ("host: [::1]", "origin: null")):
            for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"):
                with RawConnection(shared_server.url) as connection:
                    status, answer = connection.ask(
                        f"POST {path} HTTP/1.1", *fields, f"content-type: {kind}", length=1_000_000
                    )
                    assert status == 403 and (b"error" in answer or b"message" in answer), path
                    assert NAME.encode() not in answer


def test_a_connection_goes_on_after_a_refusal(shared_server: Process) -> None:
    with RawConnection(shared_server.url) as connection:
        for _ in range(2):
            assert connection.ask("POST /tokenize HTTP/1.1", f"host: {NAME}", body=BODY)[0] == 403
            assert connection.ask("POST /tokenize HTTP/1.1", "host: localhost:1", body=BODY)[0] == 200


@pytest.mark.parametrize(
    ("line", "hosts", "status"),
    [
        ("GET /info HTTP/1.1", (), 400),
        ("GET /health HTTP/1.1", (), 400),
        ("GET /info HTTP/1.1", ("",), 400),
        ("GET /info HTTP/1.1", ("localhost", "localhost"), 400),
        ("GET /health HTTP/1.1", ("localhost", NAME), 400),
        ("GET /health HTTP/1.0", (), 200),
        ("GET /ready HTTP/1.0", (), 200),
        ("GET /info HTTP/1.0", (), 400),
        ("GET /info HTTP/1.0", ("127.0.0.1",), 200),
        ("GET /health HTTP/1.1", ("any.name",), 200),
        ("GET /ready HTTP/1.1", ("10.0.0.7:8000",), 200),
        ("GET /info HTTP/1.1", ("10.0.0.7:8000",), 200),
    ],
)
def test_a_request_has_one_host(shared_server: Process, line: str, hosts: tuple[str, ...], status: int) -> None:
    with RawConnection(shared_server.url) as connection:
        assert connection.ask(line, *(f"host: {host}" for host in hosts))[0] == status


def test_nginx_without_and_with_the_host_of_the_client(
    shared_server: Process, start: Callable[..., Process], checkpoints: list[str]
) -> None:
    """By default, nginx sends the upstream's name as `Host`; with `proxy_set_header Host $host`, the client's."""
    named = start("--allowed-hosts", NAME, "--trusted-proxies", "127.0.0.1,::1").wait_ready()
    distrustful = start("--allowed-hosts", NAME).wait_ready()
    listed = start("--cors-origins", ORIGIN).wait_ready()
    upstream = urlsplit(shared_server.url).netloc
    page = f"origin: {ORIGIN}"
    forwarded = "x-forwarded-proto: https"
    for server, fields, status in (
        (shared_server, (f"host: {upstream}",), 200),
        (shared_server, ("host: backend",), 403),
        (shared_server, (f"host: {NAME}",), 403),
        (shared_server, (f"host: {upstream}", page, forwarded), 403),
        (named, (f"host: {NAME}",), 200),
        (named, (f"host: {NAME}", page, forwarded), 200),
        (named, (f"host: {NAME}", page), 403),
        (distrustful, (f"host: {NAME}", page, forwarded), 403),
        (listed, (f"host: {upstream}", page), 200),
        (listed, (f"host: {NAME}", page), 403),
    ):
        for version, connection_field in (("1.0", "close"), ("1.1", "keep-alive")):
            with RawConnection(server.url) as connection:
                line = f"POST /tokenize HTTP/{version}"
                assert connection.ask(line, *fields, f"connection: {connection_field}", body=BODY)[0] == status, fields
