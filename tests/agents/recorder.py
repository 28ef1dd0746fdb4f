"""A proxy that records what a program sends to the server and what it receives. It changes nothing.

Used for the recorded requests in tests/wire/agents, and to show what went wrong when a test of a program fails.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_HOP = {
    "connection",
    "keep-alive",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "proxy-connection",
    "host",
}


@dataclass
class Exchange:
    """A request and its answer. body: body of the request as parsed JSON, else as text, or None. answer: text."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int
    answer_headers: dict[str, str]
    answer: str

    def __str__(self) -> str:
        return f"{self.method} {self.path} -> {self.status}: {self.answer[:600]}"


class Recorder:
    """The proxy. url: its address. exchanges: recorded requests with their answers, in the order of completion."""

    def __init__(self, upstream: str) -> None:
        self.exchanges: list[Exchange] = []
        recorder, target = self, urlsplit(upstream)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def _forward(self) -> None:
                body = self._body()
                connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=300)
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                try:
                    connection.request(self.command, self.path, body or None, headers)
                    answer = connection.getresponse()
                    text = self._pass_on(answer)
                finally:
                    connection.close()
                recorder.exchanges.append(
                    Exchange(
                        self.command,
                        self.path,
                        {name.lower(): value for name, value in self.headers.items()},
                        _parsed(body),
                        answer.status,
                        {name.lower(): value for name, value in answer.getheaders()},
                        text,
                    )
                )

            def _body(self) -> bytes:
                if self.headers.get("transfer-encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length") or 0))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def _pass_on(self, answer: http.client.HTTPResponse) -> str:
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                length = answer.getheader("content-length")
                has_body = self.command != "HEAD" and answer.status not in (204, 304)
                chunked = has_body and length is None
                self.send_header("Transfer-Encoding", "chunked") if chunked else self.send_header(
                    "Content-Length", length or "0"
                )
                self.end_headers()
                parts = []
                while has_body and (data := answer.read1(65536)):
                    parts.append(data)
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
                    self.wfile.flush()
                if chunked:
                    self.wfile.write(b"0\r\n\r\n")
                return b"".join(parts).decode("utf-8", "replace")

            do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = do_OPTIONS = do_PATCH = _forward

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _parsed(body: bytes) -> Any:
    if not body:
        return None
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


@contextmanager
def recording(upstream: str) -> Iterator[Recorder]:
    """Context manager that runs a recorder in front of the server at the URL `upstream`."""
    recorder = Recorder(upstream)
    try:
        yield recorder
    finally:
        recorder.close()
