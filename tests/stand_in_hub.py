"""A stand-in for the Hugging Face hub: a small HTTP server with its API, redirects, broken downloads and refusals."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".gguf")
"""Endings of files that the hub keeps on a separate storage server, with a SHA-256."""
TOKEN = "hf_right"


def commit_of(repository: str, revision: str) -> str:
    return hashlib.sha1(f"{repository} {revision}".encode()).hexdigest()


@dataclass
class StandInHub:
    """The repositories of the hub, its planned failures, and the requests that it got.

    repositories: the files by name, by repository (`org/name`) and revision. gated: repositories that need a token.
    breaks: by file, the number of bytes after which its next downloads break off, one entry per download.
    damaged: by file, how many of its next downloads have a wrong first byte.
    requests: method, path and token of each request. ranges: first byte of each request for a part of a file.
    """

    url: str = ""
    repositories: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    breaks: dict[str, list[int]] = field(default_factory=dict)
    damaged: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    ranges: list[tuple[str, int]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    holds: bool = False

    def add(self, repository: str, revision: str = "main", **files: bytes) -> None:
        """Add a revision. In the names of files, which are Python keywords here, `__` stands for a dot."""
        named = {name.replace("__", "."): data for name, data in files.items()}
        self.repositories.setdefault(repository, {})[revision] = named

    def fetched(self) -> set[str]:
        """Names of the files that were downloaded, at least in part."""
        return {name for name, _ in self.ranges}


def _handler(hub: StandInHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path, self.headers.get("authorization", "")))
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
                self.describe(found[1], found[2] or "main")
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self.resolve(*found.groups())
            elif found := re.fullmatch(r"/storage/([^/]+/[^/]+)/([^/]+)/(.+)", path):
                self.send_bytes(found[3], hub.repositories[found[1]][found[2]][found[3]])
            else:
                self.refuse(404, "EntryNotFound")

        do_HEAD = do_GET

        def files(self, repository: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
            """The commit and the files of a revision. None: an error response was sent instead."""
            allowed = self.headers.get("authorization") == f"Bearer {TOKEN}"
            revisions = hub.repositories.get(repository)
            if revisions is None or (repository in hub.private and not allowed):
                return self.refuse(404 if self.headers.get("authorization") else 401, "RepoNotFound")
            if repository in hub.gated and not allowed:
                return self.refuse(403 if self.headers.get("authorization") else 401, "GatedRepo")
            for name, files in revisions.items():
                if revision in (name, commit_of(repository, name)):
                    return name, files
            return self.refuse(404, "RevisionNotFound")

        def refuse(self, status: int, code: str) -> None:
            body = b'{"error": "no"}'
            self.answer(status, body, {"x-error-code": code, "x-error-message": "no"})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in ({"content-length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def describe(self, repository: str, revision: str) -> None:
            found = self.files(repository, revision)
            if found is None:
                return
            siblings = []
            for name, data in found[1].items():
                about: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": _git_hash(data)}
                if name.endswith(LARGE):
                    about["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
                siblings.append(about)
            sha = commit_of(repository, found[0])
            body = {"id": repository, "modelId": repository, "sha": sha, "siblings": siblings, "private": False}
            body |= {"tags": ["license:apache-2.0"], "downloads": 0, "likes": 0}
            self.answer(200, json.dumps(body).encode(), {"content-type": "application/json"})

        def resolve(self, repository: str, revision: str, name: str) -> None:
            found = self.files(repository, revision)
            if found is None:
                return
            if name not in found[1]:
                self.refuse(404, "EntryNotFound")
                return
            data = found[1][name]
            headers = {"x-repo-commit": commit_of(repository, found[0])}
            if name.endswith(LARGE):
                # The storage server is another host, which must not get the token.
                port = self.server.server_address[1]
                headers |= {
                    "location": f"http://localhost:{port}/storage/{repository}/{found[0]}/{name}",
                    "x-linked-size": str(len(data)),
                    "x-linked-etag": f'"{hashlib.sha256(data).hexdigest()}"',
                    "etag": f'"{_git_hash(data)}"',
                }
                self.answer(302, b"", headers)
            elif self.command == "HEAD":
                self.answer(200, b"", headers | {"etag": f'"{_git_hash(data)}"', "content-length": str(len(data))})
            else:
                self.send_bytes(name, data, headers | {"etag": f'"{_git_hash(data)}"'})

        def send_bytes(self, name: str, data: bytes, headers: dict[str, str] | None = None) -> None:
            whole = len(data)
            ranged = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
            begin = int(ranged[1]) if ranged else 0
            if self.command == "GET":
                hub.ranges.append((name, begin))
            if hub.damaged.get(name) and begin == 0:
                hub.damaged[name] -= 1
                data = b"?" + data[1:]
            self.send_response(206 if ranged else 200)
            self.send_header("content-length", str(whole - begin))
            if ranged:
                self.send_header("content-range", f"bytes {begin}-{whole - 1}/{whole}")
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "GET":
                return
            if hub.breaks.get(name):
                self.wfile.write(data[begin : begin + hub.breaks[name].pop(0)])
                self.wfile.flush()
                self.close_connection = True
                return
            if hub.holds and name.endswith(LARGE):
                half = (whole - begin) // 2
                self.wfile.write(data[begin : begin + half])
                self.wfile.flush()
                hub.hold.wait(60)
                begin += half
            self.wfile.write(data[begin:])

        def log_message(self, *parts: object) -> None:
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    def handle_error(self, *request: object) -> None:
        """Print nothing about clients that have disconnected."""


def _git_hash(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


@contextmanager
def stand_in_hub() -> Iterator[StandInHub]:
    """Run the server on a free port until the end of the block."""
    hub = StandInHub()
    server = _Server(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()
