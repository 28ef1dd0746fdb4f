"""The header `Upgrade`: find the requests that open a WebSocket connection, and remove the header from all others."""

from __future__ import annotations

import re
from collections.abc import Sequence

import httptools

Headers = Sequence[tuple[bytes, bytes]]
"""Headers as pairs of name, in lower case, and value."""

_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_TOKENS = re.compile(rb"[ \t]*%b[ \t]*(?:,[ \t]*%b[ \t]*)*" % (_TOKEN, _TOKEN))


def is_handshake(headers: Headers) -> bool:
    """Whether the headers open a WebSocket connection of version 13 (RFC 6455, section 4.2.1).

    The WebSocket library must not get other requests: it would repeat parts of them in its answer, before the API key
    is checked.
    """

    def values(name: bytes) -> list[bytes]:
        return [value for found, value in headers if found == name]

    keys, lists = values(b"sec-websocket-key"), [*values(b"connection"), *values(b"sec-websocket-protocol")]
    return (
        len(keys) == 1
        and _KEY.fullmatch(keys[0]) is not None
        and values(b"sec-websocket-version") == [b"13"]
        and len(values(b"origin")) < 2
        and all(map(_TOKENS.fullmatch, lists))
    )


def head_without_upgrade(parser: httptools.HttpRequestParser, url: bytes, headers: Headers) -> bytes:
    """Write the request line and headers of a parsed request again, without the header `Upgrade`.

    parser: has parsed the headers of the request. url: target of the request.
    """
    lines = [b"%b %b HTTP/%b" % (parser.get_method(), url, parser.get_http_version().encode())]
    for name, value in headers:
        if name == b"connection":
            value = b", ".join([token for token in value.split(b",") if token.strip().lower() != b"upgrade"])
        if name != b"upgrade" and (value or name != b"connection"):
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join([*lines, b"", b""])
