"""A fake HTTP server for tests of the client commands. A test function answers the requests, which are recorded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeRequest:
    """A request that the server has received. body: parsed JSON, or None without a body."""

    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass
class Reply:
    """An answer.

    body: bytes to send, or a value to send as JSON. broken: whether to close the connection before the end of the body.
    """

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    broken: bool = False

    def encode(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


Answer = Callable[[FakeRequest], Reply]


@dataclass
class FakeServer:
    url: str
    requests: list[FakeRequest]


def error(status: int, message: str = "no", **headers: str) -> Reply:
    """An error in the format of the native dialect. headers: further headers, with `_` for `-`."""
    return Reply({"error": {"message": message}}, status, {name.replace("_", "-"): v for name, v in headers.items()})


def events(*pairs: tuple[str, Any]) -> Reply:
    """A stream of server-sent events. pairs: name and data of each.

    An event with an empty name has no `event` line. Data is sent as JSON unless it is a string.
    """
    lines = []
    for name, value in pairs:
        data = value if isinstance(value, str) else json.dumps(value)
        lines.append((f"event: {name}\n" if name else "") + f"data: {data}\n\n")
    return Reply("".join(lines).encode(), headers={"content-type": "text/event-stream"})


@contextmanager
def fake_server(answer: Answer) -> Iterator[FakeServer]:
    """Context manager that runs a server on a free port. answer: function that returns the reply to a request."""
    requests: list[FakeRequest] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("content-length", 0))
            data = self.rfile.read(length)
            request = FakeRequest(self.path, self.headers, json.loads(data) if data else None)
            requests.append(request)
            reply = answer(request)
            body = reply.encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body) + reply.broken))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = self.close_connection or reply.broken

        do_POST = do_GET

        def log_message(self, *parts: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield FakeServer(f"http://127.0.0.1:{server.server_address[1]}", requests)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
