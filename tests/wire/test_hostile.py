"""Hostile requests get a 4xx answer in valid JSON that repeats nothing of the request. The server continues to work."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable
from contextlib import suppress

import httpx
import pytest

from tests.waiting import HANG_SECONDS
from tests.wire.conftest import Process

CANARY = "CaNaRy7f3"

HOSTILE = {
    "nan": b'{"prompt": "%s", "temperature": NaN}',
    "infinity": b'{"prompt": "%s", "temperature": Infinity}',
    "huge exponent": b'{"prompt": "%s", "temperature": 1e999}',
    "huge integer": b'{"prompt": "%s", "seed": ' + b"9" * 5000 + b"}",
    "integer above u64": b'{"prompt": "%s", "seed": 18446744073709551616}',
    "lone surrogate": b'{"prompt": "%s\\ud800"}',
    "invalid utf-8": b'{"prompt": "%s\xff"}',
    "utf-8 surrogate": b'{"prompt": "%s\xed\xa0\x80"}',
    "byte order mark": b'\xef\xbb\xbf{"prompt": "%s"}',
    "deep arrays": b"[" * 100_000,
    "deep but closed": b'{"prompt": "%s", "metadata": ' + b"[" * 100 + b"]" * 100 + b"}",
    "deep objects": b'{"a":' * 101 + b"1" + b"}" * 101,
    "truncated": b'{"prompt": "%s',
    "trailing": b'{"prompt": "%s"} x',
    "two values": b'{"prompt": "%s"}{}',
    "empty": b"",
    "a list": b'["%s"]',
    "a string": b'"%s"',
    "null": b"null",
    "unknown field": b'{"prompt": "a", "%s%s%s-<script>": 1}',
    "wrong type": b'{"prompt": {"x": "%s"}}',
    "bad literal": b'{"prompt": "a", "early_stopping": "%s", "num_beams": 2}',
    "odd model": b'{"prompt": "a", "model": "%s"}',
    "odd language": b'{"prompt": "a", "model": "translator", "target_lang": "%s"}',
    "a path for a model": b'{"prompt": "a", "model": "../../etc/%s"}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused_and_not_echoed(client: httpx.Client, shared_server: Process, name: str) -> None:
    pid = shared_server.worker().pid
    body = HOSTILE[name].replace(b"%s", CANARY.encode())
    response = client.post("/generate", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (404, 422), response.text
    error = json.loads(response.content)["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert CANARY not in response.text and "script" not in response.text
    assert client.post("/generate", json={"prompt": "ok"}).status_code == 200
    assert shared_server.worker().pid == pid


def test_request_contents_appear_neither_in_logs_nor_in_metrics(client: httpx.Client, shared_server: Process) -> None:
    client.post("/generate", json={"prompt": CANARY, "model": "decoder"}, headers={"authorization": f"Bearer {CANARY}"})
    client.post("/generate", json={"prompt": CANARY, "temperature": "x"})
    client.get(f"/{CANARY}?q={CANARY}")
    assert CANARY not in shared_server.output
    assert CANARY not in client.get("/metrics").text


def test_a_nul_character_is_ordinary_text(client: httpx.Client) -> None:
    answer = client.post("/generate", json={"prompt": "a\0b"})
    assert answer.json()["choices"][0]["text"] == "a\0b"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
def test_a_body_without_a_json_content_type_is_refused(client: httpx.Client, content_type: str | None) -> None:
    headers = {"content-type": content_type} if content_type else {}
    response = client.post("/generate", content=b'{"prompt": "a"}', headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (415, "content-type")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/generate", "application/json"),
        ("/v1/chat/completions", "application/json"),
        ("/detect", "application/x-www-form-urlencoded"),
        ("/v1/audio/transcriptions", "multipart/form-data; boundary=x"),
    ],
)
def test_compressed_bodies_are_refused(client: httpx.Client, path: str, kind: str) -> None:
    headers = {"content-type": kind, "content-encoding": "gzip"}
    response = client.post(path, content=gzip.compress(b'{"prompt": "abc"}'), headers=headers)
    assert response.status_code == 415, response.text
    assert "Content-Encoding" in response.text


def test_an_encoding_that_changes_nothing_is_accepted(client: httpx.Client) -> None:
    response = client.post("/tokenize", json={"inputs": "abc"}, headers={"content-encoding": "identity"})
    assert response.status_code == 200, response.text


def test_a_body_above_the_limit_is_refused_with_and_without_its_declared_length(client: httpx.Client) -> None:
    big = b'{"prompt": "' + b"a" * (2 << 20) + b'"}'
    declared = client.post("/generate", content=big, headers={"content-type": "application/json"})
    assert (declared.status_code, declared.json()["error"]["code"]) == (413, "body_too_large")
    chunks = (big[i : i + 65536] for i in range(0, len(big), 65536))
    streamed = client.post("/generate", content=chunks, headers={"content-type": "application/json"})
    assert (streamed.status_code, streamed.json()["error"]["code"]) == (413, "body_too_large")


def test_a_large_body_below_the_limit_is_accepted(client: httpx.Client) -> None:
    response = client.post("/tokenize", json={"model": "decoder", "inputs": ["ab" * 50_000] * 4})
    assert [len(tokens) for tokens in response.json()] == [100_000] * 4


def raw(server: Process, request: bytes) -> bytes:
    """Send bytes and return all received bytes. The server may close before it has read everything."""
    url = httpx.URL(server.url)
    received = b""
    with socket.create_connection((url.host, url.port), HANG_SECONDS) as connection, suppress(ConnectionError):
        connection.sendall(request)
        while chunk := connection.recv(65536):
            received += chunk
    return received


def test_a_slow_body_times_out(start: Callable[..., Process]) -> None:
    server = start("--body-timeout-seconds", "0.5").wait_ready()
    fields = (b"host: localhost", b"connection: close", b"content-type: application/json", b"content-length: 100")
    head = b"\r\n".join((b"POST /generate HTTP/1.1", *fields, b"", b""))
    received = raw(server, head + b'{"prom')
    assert received.startswith(b"HTTP/1.1 408 ") and b'"body_timeout"' in received


def test_headers_above_the_limit_are_refused(shared_server: Process) -> None:
    received = raw(shared_server, b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"x-a: " + b"a" * (70 << 10))
    assert received.startswith(b"HTTP/1.1 431 ")


def test_bytes_that_are_not_http_are_refused(shared_server: Process) -> None:
    assert raw(shared_server, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_unknown_paths_add_no_metric_series(client: httpx.Client) -> None:
    client.get("/no/such/0")
    before = client.get("/metrics").text.count("\n")
    for number in range(200):
        client.get(f"/no/such/{number}")
        client.request("POST", f"/{number}%00%ff", content=b"x")
    # The first histogram of a route takes at most 40 lines.
    assert client.get("/metrics").text.count("\n") <= before + 40
    assert "such" not in client.get("/metrics").text


POST = b"POST /generate HTTP/1.1\r\nhost: localhost\r\n"
UPGRADE = b"connection: upgrade\r\nupgrade: h2c\r\n"
INVALID = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00CaNaRy7f3\r\n\r\n",
    "method": b"CANARY / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "version": b"GET / HTTP/CaNaRy7f3\r\nhost: localhost\r\n\r\n",
    "space in a name": b"GET / HTTP/1.1\r\nhost: localhost\r\nCaNaRy7f3 : 1\r\n\r\n",
    "both lengths": POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
    "two lengths": POST + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "size of a chunk": POST + b"transfer-encoding: chunked\r\n\r\nCaNaRy\r\n",
    "target": b"CONNECT CaNaRy7f3:443 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "target with an upgrade": b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: CaNaRy7f3\r\n\r\n",
    "a body behind an upgrade": POST + UPGRADE + b"transfer-encoding: chunked\r\n\r\nxCaNaRy7f3\r\n",
    "characters of a path": b"GET /CaNaRy7f3\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "headers above the limit": b"GET /health HTTP/1.1\r\nhost: x\r\nCaNaRy7f3: " + b"a" * (70 << 10),
}


@pytest.mark.parametrize("name", INVALID)
def test_bytes_that_are_not_http_get_json_with_an_id(name: str, shared_server: Process) -> None:
    """Bytes that are not HTTP get a JSON error with an id, which repeats nothing of what was sent."""
    received = raw(shared_server, INVALID[name])
    head, _, body = received.partition(b"\r\n\r\n")
    status = 431 if "headers above" in name else 400
    assert head.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in head
    error = json.loads(body)["error"]
    assert error["code"] == ("headers_too_large" if status == 431 else "invalid_request")
    assert f"x-request-id: {error['request_id']}".encode() in head
    assert CANARY.encode() not in received and b"CANARY" not in received


def test_bytes_that_are_not_http_fill_no_log(start: Callable[..., Process]) -> None:
    """Many requests that are not HTTP give few lines in the log: one for the first, then the number of further ones.

    A request with `Upgrade` is not logged as a fault.
    """
    server = start().wait_ready()
    for _ in range(50):
        raw(server, INVALID["method"])
        raw(server, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close, upgrade\r\nupgrade: h2c\r\n\r\n")
    lines = [line for line in server.lines if "WARNING" in line]
    assert 1 <= len(lines) <= 20, lines
    assert "127.0.0.1" in lines[0] and not any("CANARY" in line or "upgrade" in line.lower() for line in lines)


def test_garbage_behind_a_request_does_not_mix_with_its_answer(client: httpx.Client, shared_server: Process) -> None:
    """The running answer breaks off. An error response within its chunks would look like a part of its text."""
    body = b'{"model": "decoder", "prompt": "abc&", "stream": true}'  # the worker stops at &
    head = b"POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    url = httpx.URL(shared_server.url)
    received = b""
    with socket.create_connection((url.host, url.port), HANG_SECONDS) as connection, suppress(ConnectionError):
        connection.sendall(head % len(body) + body)
        while b"data:" not in received:
            received += connection.recv(65536)
        connection.sendall(b"garbage\r\n\r\n")
        while chunk := connection.recv(65536):
            received += chunk
    assert received.count(b"HTTP/1.1 ") == 1


TOKENIZE = b'{"model": "decoder", "inputs": "ab"}'
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
"""Headers that Java's HTTP client sends with the first request of a connection, to ask for HTTP/2."""


def answers(received: bytes) -> list[int]:
    """The status codes of all responses in the bytes that were received on a connection."""
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("split", [None, 30, 90, 200])
def test_an_upgrade_that_is_not_taken_changes_nothing(chunked: bool, split: int | None, shared_server: Process) -> None:
    """A request that asks for HTTP/2 is answered in HTTP/1.1, and so are the requests after it on the connection."""
    head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" + H2C
    length = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(TOKENIZE)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(TOKENIZE), TOKENIZE) if chunked else TOKENIZE
    get = b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + H2C + b"\r\n"
    last = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    sent = (head + length + b"\r\n\r\n" + body + get) * 3 + last
    url = httpx.URL(shared_server.url)
    received = b""
    with socket.create_connection((url.host, url.port), HANG_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(sent), split or len(sent)):
            connection.sendall(sent[start : start + (split or len(sent))])
        while chunk := connection.recv(65536):
            received += chunk
    assert answers(received) == [200] * 7, received


def test_trailers_are_no_headers(shared_server: Process) -> None:
    """Trailers after a chunked body must not act as headers, because a proxy in front has not checked them."""
    head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    body = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(TOKENIZE), TOKENIZE)
    trailers = b"host: evil.example\r\norigin: http://evil.example\r\nx-request-id: CaNaRy7f3\r\n\r\n"
    received = raw(shared_server, head + body + trailers)
    assert answers(received) == [200] and CANARY.encode() not in received


def test_another_transfer_coding_is_refused(client: httpx.Client, shared_server: Process) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    body = b"transfer-encoding: gzip, chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(TOKENIZE), TOKENIZE)
    assert answers(raw(shared_server, head + body)) == [415]


@pytest.mark.parametrize(
    "header",
    [
        b"sec-websocket-version: CaNaRy7f3",
        b"sec-websocket-key: CaNaRy7f3",
        b"sec-websocket-protocol: ;CaNaRy7f3",
        b"origin: http://localhost\r\norigin: http://localhost",
    ],
)
def test_a_damaged_handshake_repeats_nothing(header: bytes, shared_server: Process) -> None:
    """A faulty WebSocket handshake gets our own error.

    The library's would quote the header, before any key is checked.
    """
    fields = {
        b"host": b"localhost",
        b"connection": b"close, Upgrade",
        b"upgrade": b"websocket",
        b"sec-websocket-version": b"13",
        b"sec-websocket-key": b"dGhlIHNhbXBsZSBub25jZQ==",
    }
    fields.pop(header.partition(b":")[0], None)
    head = b"".join(b"%b: %b\r\n" % field for field in fields.items()) + header
    received = raw(shared_server, b"GET /v1/realtime HTTP/1.1\r\n" + head + b"\r\n\r\n")
    assert answers(received)[0] in (403, 404) and CANARY.encode() not in received
    assert "error" in json.loads(received.partition(b"\r\n\r\n")[2])


def test_a_body_of_many_small_chunks_costs_no_stack(shared_server: Process) -> None:
    """Many small chunks need no stack. In another server, each chunk took 16 bytes of it (CVE-2025-23310)."""
    head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    text = b'{"model": "decoder", "inputs": "%b"}' % (b"ab" * 20_000)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in text)
    received = raw(shared_server, head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert answers(received) == [200]


def test_many_ranges_of_a_page_are_not_merged(client: httpx.Client) -> None:
    """Many byte ranges in one request cost little. Starlette merged them in quadratic time (CVE-2025-62727)."""
    ranges = ",".join(f"{start}-{start + 1}" for start in range(0, 9000, 3))
    answer = client.get("/docs", headers={"range": f"bytes={ranges}", "accept": "text/html"})
    assert answer.status_code in (200, 416) and len(answer.content) < 1 << 20
