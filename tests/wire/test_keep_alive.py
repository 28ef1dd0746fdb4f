"""Persistent connections (keep-alive), which need tests with real sockets.

`HEAD` has the status of `GET` and no body, and `Upgrade` changes nothing. The connection stays open after both.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from server.api.dialects import registry
from server.api.pages import docs_page, playground_page
from tests.waiting import HANG_SECONDS
from tests.wire.conftest import Process

CLIENTS = 20
STATUS_PATHS = frozenset({"/health", "/ready", "/info", "/metrics", "/openapi.json"})


def _named(path: str) -> str:
    """The path of a route with `decoder` in place of its parameters."""
    return re.sub(r"{\w+(:\w+)?}", "decoder", path)


GET_PATHS = sorted(
    STATUS_PATHS
    | docs_page.PAGE.files.keys()
    | playground_page.FILES
    | {_named(path) for route in registry.GET_ROUTES for path in (route.path, *route.aliases)}
)
POST_PATHS = sorted(
    {_named(path) for route in registry.ROUTES for path in (route.path, *route.aliases)}.difference(GET_PATHS)
)
PATHS = [*GET_PATHS, *POST_PATHS, "/no/such/route"]


class KeptConnection(http.client.HTTPConnection):
    """A connection that raises an error when the server has closed it, instead of connecting again."""

    def __init__(self, url: str) -> None:
        super().__init__(urlsplit(url).netloc, timeout=HANG_SECONDS)
        self.connect()
        self.auto_open = 0

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, dict[str, str], bytes]:
        headers = {"accept": "*/*"} | ({} if body is None else {"content-type": "application/json"})
        self.request(method, path, body, headers)
        answer = self.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def head_then_the_other(connection: KeptConnection, path: str) -> None:
    """Send `HEAD`, then `GET` or `POST`, and compare both answers."""
    status, headers, body = connection.ask("HEAD", path)
    assert body == b"" and "transfer-encoding" not in headers, path
    if path in POST_PATHS:
        assert (status, headers["allow"]) == (405, "POST"), path
        posted, _, answer = connection.ask("POST", path, "{}")
        assert 200 <= posted < 500 and answer, path
        return
    got, got_headers, content = connection.ask("GET", path)
    assert (status, headers["content-type"]) == (got, got_headers["content-type"]), path
    if path not in ("/metrics", "/info"):
        assert headers["content-length"] == got_headers["content-length"] == str(len(content)), path


def test_connections_outlive_head_on_every_route(shared_server: Process) -> None:
    assert len(GET_PATHS) > 25 and len(POST_PATHS) > 40

    def walk(client: int) -> None:
        connection = KeptConnection(shared_server.url)
        for path in PATHS[client % 4 :: 4]:
            head_then_the_other(connection, path)
        connection.close()

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(walk, range(CLIENTS)))


@pytest.mark.parametrize("accept", ["*/*", "text/html"])
def test_head_of_the_root_answers_as_get(shared_server: Process, accept: str) -> None:
    connection = KeptConnection(shared_server.url)
    for method in ("HEAD", "GET", "HEAD"):
        connection.request(method, "/", headers={"accept": accept})
        answer = connection.getresponse()
        expected = "text/html" if accept == "text/html" else "application/json"
        assert answer.status == 200 and answer.getheader("content-type", "").startswith(expected)
        assert bool(answer.read()) is (method == "GET")
    connection.close()


def test_head_takes_the_key_where_get_takes_it(start: Callable[..., Process]) -> None:
    server = start(environment={"TRIPTYCH_API_KEYS": "the-key"}).wait_ready()
    connection = KeptConnection(server.url)
    for path, status in (("/languages", 403), ("/languages?api_key=the-key", 200), ("/health", 200), ("/", 200)):
        for method in ("HEAD", "GET"):
            assert connection.ask(method, path)[0] == status, (method, path)
    connection.close()
    assert re.search(r" HEAD /languages 200 .* key=setting-1", server.output)


UPGRADE = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABk"}
"""Headers that Java's HTTP client sends with every request, to ask for HTTP/2."""


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_that_asks_for_another_protocol_is_answered(shared_server: Process, chunked: bool) -> None:
    connection = KeptConnection(shared_server.url)
    body = b'{"inputs": "abc"}'
    for _ in range(3):
        content = iter([body[:5], body[5:]]) if chunked else body
        connection.request(
            "POST", "/tokenize", content, UPGRADE | {"Content-Type": "application/json"}, encode_chunked=chunked
        )
        answer = connection.getresponse()
        assert answer.status == 200 and len(json.loads(answer.read())[0]) == 3
        for method in ("HEAD", "GET"):
            connection.request(method, "/health", headers=UPGRADE)
            answer = connection.getresponse()
            assert answer.status == 200 and bool(answer.read()) is (method == "GET")
        assert connection.ask("GET", "/ready")[0] == 200
    connection.close()


def test_requests_after_an_upgrade_in_one_packet_are_answered(shared_server: Process) -> None:
    parts = urlsplit(shared_server.url)
    headers = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
    one = f"GET /health HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"
    last = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port), HANG_SECONDS) as connection:
        connection.sendall((one * 5 + last).encode())
        with connection.makefile("rb") as reader:
            answers = reader.read()
    assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b'{"status":"ok"}') == 6


def test_a_tunnel_is_refused(shared_server: Process) -> None:
    parts = urlsplit(shared_server.url)
    with socket.create_connection((parts.hostname, parts.port), HANG_SECONDS) as connection:
        connection.sendall(b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")


def test_http_1_0_gets_no_chunks(shared_server: Process) -> None:
    """In HTTP/1.0, the server ends a stream by closing the connection. An answer of known length has its length."""
    bodies = {}
    for stream in (True, False):
        body = f'{{"prompt": "abc", "stream": {str(stream).lower()}}}'.encode()
        parts = urlsplit(shared_server.url)
        with socket.create_connection((parts.hostname, parts.port), HANG_SECONDS) as connection:
            fields = f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            connection.sendall(f"POST /generate HTTP/1.0\r\n{fields}\r\n".encode() + body)
            with connection.makefile("rb") as reader:
                head, _, bodies[stream] = reader.read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert b"transfer-encoding" not in head and b"connection: close" in head
        assert (b"content-length" in head) == (not stream)
    names = [name for event in bodies[True].split(b"\n\n") for name in re.findall(rb"^event: (\w+)$", event, re.M)]
    assert names and names[-1] == b"done" and bodies[True].endswith(b"}\n\n"), bodies[True]
    assert json.loads(bodies[False])["choices"][0]["text"] == "abc"
