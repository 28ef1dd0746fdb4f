"""Stored sets of allowed sequences over a socket: which are accepted or refused, and which API key may use a set."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.waiting import HANG_SECONDS, eventually
from tests.wire.checkpoints import write_checkpoint
from tests.wire.conftest import Process

PATH = "/allowed_sequences/titles"
LINES = b'"ab"\n[100, 101, 102]\n\n"abc"\n'


def put(client: httpx.Client, lines: bytes = LINES, path: str = PATH, kind: str = "", **query: str) -> httpx.Response:
    headers = {"Content-Type": kind or "application/x-ndjson"}
    return client.put(path, content=lines, params={"model": "decoder", **query}, headers=headers)


def generate(client: httpx.Client, name: str = "titles", **more: Any) -> httpx.Response:
    return client.post("/generate", json={"model": "decoder", "prompt": "a", "allowed_sequences": name, **more})


@pytest.fixture
def http(client: httpx.Client) -> Iterator[httpx.Client]:
    """A client of the server, which has no stored sets yet."""
    yield client
    for found in client.get("/allowed_sequences").json()["sets"]:
        client.delete(f"/allowed_sequences/{found['name']}")


def test_a_set_is_stored_named_listed_and_deleted(http: httpx.Client) -> None:
    made = put(http)
    assert made.status_code == 201, made.text
    found = made.json()
    assert (found["name"], found["model"], found["sequences"], found["tokens"]) == ("titles", "decoder", 3, 8)
    assert found["memory_bytes"] == 9 * 4  # [100, 101, 102] are the bytes of "abc": the root and three nodes
    assert http.get(PATH).json() == found and http.get("/allowed_sequences").json() == {"sets": [found]}
    assert generate(http).status_code == generate(http, num_beams=2).status_code == 200
    translated = http.post("/translate", json={"model": "translator", "inputs": "a", "allowed_sequences": "titles"})
    assert translated.status_code == 422 and "of the model `decoder`" in translated.json()["error"]["message"]
    assert put(http, b'"x"').json()["sequences"] == 1
    deleted = http.delete(PATH)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert http.get(PATH).status_code == http.delete(PATH).status_code == 404
    answer = generate(http)
    assert answer.status_code == 422 and answer.json()["error"]["param"] == "allowed_sequences"


@pytest.mark.parametrize("kind", ["application/jsonl", "application/octet-stream", "application/x-ndjson; charset=x"])
def test_media_types(http: httpx.Client, kind: str) -> None:
    assert put(http, kind=kind).status_code == 201


@pytest.mark.parametrize(
    "lines, problem",
    [
        (b"", "no sequence"),
        (b"\n \n", "no sequence"),
        (b'"ab"\n""\n', "line 2"),
        (b'"ab"\n[]', "line 2"),
        (b'"ab"\n\n[1.5]', "line 3"),
        (b'"ab"\n[true]', "line 2"),
        (b'"ab"\n[[5]]', "line 2"),
        (b'"ab"\n{"a": 1}', "line 2"),
        (b'"ab"\n[5', "line 2"),
        (b'"ab", "b"\n"c"', "line 1"),
        (b'"ab"\n[5], [6]\n', "line 2"),
        (b'["a"\n"b"]', "line 1"),
        (b'"a"\n[18446744073709551615]', "line 2"),
        (b'"a"\n[-1]', "line 2"),
        (b'"a"\n[259]', "outside the vocabulary of 259 in line 2"),
        (b'"a"\n"b"\n[1]', "an end token in line 3"),
        (b'"\xff"', "line 1"),
        (b'"a"\n[' + b",".join([b"5"] * 4097) + b"]", "4,097 tokens in line 2; the limit is 4,096"),
        (b'"a"\n"' + b"b" * (1 << 16) + b'"', "line 2 has 65,538 bytes; the limit is 65,536"),
        (b'"a"\n"' + b"b" * (1 << 19) + b'"', "bytes; the limit is 65,536"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_stored(http: httpx.Client, lines: bytes, problem: str) -> None:
    answer = put(http, lines)
    assert answer.status_code == 422 and problem in answer.json()["error"]["message"], answer.text
    assert http.get("/allowed_sequences").json() == {"sets": []}


def test_wrong_names_models_and_queries(http: httpx.Client) -> None:
    assert put(http, path="/allowed_sequences/a%20b").json()["error"]["param"] == "name"
    assert put(http, model="nothing").status_code == 404
    assert put(http, model="embedder").status_code == 422
    assert put(http, kind="application/json").status_code == put(http, kind="text/plain").status_code == 415
    assert put(http, other="x").status_code == 422
    for wrong in ("", "a b", 5, {"name": "titles"}):
        answer = generate(http, wrong)  # type: ignore[arg-type]
        assert answer.status_code == 422 and answer.json()["error"]["param"] == "allowed_sequences", wrong


def test_many_lines_in_many_chunks(http: httpx.Client) -> None:
    """A file is read in pieces, which begin and end anywhere in a line."""
    lines = b"".join(
        json.dumps([3 + i % 250, 3 + i // 250 % 250, 3 + i // 62500]).encode() + b"\n" for i in range(99999)
    )

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(lines), 70_001):
            yield lines[start : start + 70_001]

    headers = {"Content-Type": "application/x-ndjson"}
    made = http.put(PATH, content=chunks(), params={"model": "decoder"}, headers=headers)
    assert made.status_code == 201 and made.json()["sequences"] == 99_999 and made.json()["tokens"] == 299_997
    assert made.json()["memory_bytes"] == 9 * (1 + 250 + 62_500 + 99_999)
    wrong = put(http, lines + b"nothing\n")
    assert "line 100,000" in wrong.json()["error"]["message"] and http.get(PATH).json() == made.json()


def test_too_many_sequences(http: httpx.Client) -> None:
    answer = put(http, b"[5]\n" * ((1 << 20) + 1))
    assert answer.status_code == 422 and "more than 1,048,576 sequences" in answer.json()["error"]["message"]


def test_a_key_sees_its_own_sets_only(start: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\ntwo\n")
    model = [f"decoder={write_checkpoint(tmp_path / 'decoder')}"]
    server = start("--api-key-file", str(tmp_path / "keys"), "--allowed-sequences-memory", "200", models=model)
    server.wait_ready()
    clients = [
        httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=HANG_SECONDS)
        for key in ("one", "two", "three")
    ]
    first, second, stranger = clients
    assert put(first).status_code == 201 and put(stranger).status_code == 401
    assert second.get(PATH).status_code == second.delete(PATH).status_code == 404
    assert second.get("/allowed_sequences").json() == {"sets": []}
    assert generate(first).status_code == 200 and generate(second).status_code == 422
    too_large = put(first, b'"abcdefghijklmnop"', path="/allowed_sequences/other")
    assert too_large.status_code == 422 and "--allowed-sequences-memory" in too_large.json()["error"]["message"]
    for client in clients:
        client.close()


def test_a_body_that_does_not_arrive_is_ended(start: Callable[..., Process], tmp_path: Path) -> None:
    model = [f"decoder={write_checkpoint(tmp_path / 'decoder')}"]
    server = start("--body-timeout-seconds", "1", models=model)
    server.wait_ready()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), HANG_SECONDS) as connection:
        head = f"PUT {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-ndjson\r\nContent-Length: 9\r\n\r\n"
        connection.sendall(head.encode() + b'"ab')
        assert b"408" in connection.recv(4096)


def test_workers_that_start_again_get_the_sets(start: Callable[..., Process], tmp_path: Path) -> None:
    model = [f"decoder={write_checkpoint(tmp_path / 'decoder')}"]
    server = start(models=model)
    server.wait_ready()
    with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as client:
        assert put(client).status_code == 201
        assert generate(client, prompt="!").status_code == 500, "the request ends its worker twice"
        eventually(lambda: client.get("/ready").status_code == 200)
        assert generate(client).status_code == 200
        assert client.delete(PATH).status_code == 204
