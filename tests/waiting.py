"""Helpers that wait for a condition instead of a fixed time, and a client that disconnects when the test says so."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx
import psutil

Answer = TypeVar("Answer")

HANG_SECONDS = 120.0
"""Time after which a test counts as hung.

It is far longer than any step takes, even on a machine that stalls at times."""


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true. Raises AssertionError after HANG_SECONDS."""
    end = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.01)


def read_in_parts(read: Callable[[], Answer], in_parts: Callable[[Answer], bool]) -> Answer:
    """Call `read` until its stream came in more than one part, and return what it read then.

    A server usually sends each token at once. If its HTTP process had to wait for a core, several tokens come in one
    part, and a short answer may come in a single part. Raises AssertionError after HANG_SECONDS.
    """
    end = time.monotonic() + HANG_SECONDS
    while not in_parts(answer := read()):
        assert time.monotonic() < end, "the stream never came in parts"
    return answer


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended, even if its exit status was not collected yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def open_request(url: str, **body: Any) -> Iterator[None]:
    """Send a POST request and disconnect at the end of the block, without reading the answer.

    body: `json`, or `files` and `data`, as for `httpx.post`.
    """
    request = httpx.Request("POST", url, **body)
    lines = [b"POST %b HTTP/1.1" % request.url.raw_path, *(b"%b: %b" % pair for pair in request.headers.raw)]
    with socket.create_connection((request.url.host, request.url.port or 80), HANG_SECONDS) as connection:
        connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + request.read())
        yield
