"""Read a request with the header `Upgrade` like any other, where the server does not change the protocol.

A server may ignore the header (RFC 9110, section 7.8). httptools ends such a request with its headers, and what follows
is lost: the body, and the next request of a pipeline. Java's HTTP client asks for HTTP/2 this way (`Upgrade: h2c`) with
every request, and so do the programs that use it with its defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httptools


class UpgradeIgnoringParser:
    """An `httptools.HttpRequestParser` that is given the head of a request once more, without `Upgrade`.

    parser: the parser of the connection.
    head: called after a request with the header; returns its head without it, or None if the protocol changes.
    """

    def __init__(self, parser: httptools.HttpRequestParser, head: Callable[[], bytes | None]) -> None:
        self._parser = parser
        self._head = head

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> None:
        """Parse bytes of the connection. Raises HttpParserError, and HttpParserUpgrade if the protocol changes."""
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                head = self._head()
                if head is None:
                    raise
                rest = rest[upgrade.args[0] :]
                self._parser.feed_data(head)


def head_of(method: bytes, url: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    """The head of a request without the header `Upgrade`. headers: names in lower case, and values."""
    lines = [b"%b: %b\r\n" % (name, value) for name, value in headers if name != b"upgrade"]
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, url, version.encode(), b"".join(lines))
