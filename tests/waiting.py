"""Waiting for what happens instead of for a time, and clients that leave when a test says so."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil

PATIENCE = 120.0
"""Seconds that only end a test that would hang: nothing takes as long, also on a machine that stands still at times."""


def eventually(condition: Callable[[], bool]) -> None:
    """Return as soon as the condition is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.01)


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended, though perhaps nobody has asked for its status yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def asked(url: str, **body: Any) -> Iterator[None]:
    """A client that has sent a request, `json` or `files` and `data` as httpx has them, and leaves with the block.

    It reads nothing, and unlike one that leaves after a time it does not depend on how soon anything comes.
    """
    request = httpx.Request("POST", url, **body)
    lines = [b"POST %b HTTP/1.1" % request.url.raw_path, *(b"%b: %b" % pair for pair in request.headers.raw)]
    with socket.create_connection((request.url.host, request.url.port or 80), PATIENCE) as connection:
        connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + request.read())
        yield
