"""Limits of the number of values in a JSON body, counted from its bytes before it is parsed.

Parsing and validation hold Python's global lock for a time that grows with the number of values, not of bytes. A text
of 2 MB parses in 2 ms, and 2 MB of empty lists in 200 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from server.errors import InvalidRequest


@dataclass(frozen=True)
class ValueLimits:
    """Maximum counts in one JSON body.

    values: values and keys together.
    strings: strings, keys included. A string takes five times as long as a number.
    keys: keys of objects.
    containers: lists and objects.
    """

    values: int
    strings: int
    keys: int
    containers: int


PORTION = 1 << 20
"""Bytes that are counted in one call, because a call holds Python's global lock: 100 ms for 20 MB of commas."""
BODY_VALUES = ValueLimits(values=1 << 18, strings=1 << 16, keys=1 << 15, containers=1 << 13)
"""Limits of all bodies but chats. Token ids are the usual reason for many values: 262,144 of them parse in 15 ms."""
CHAT_VALUES = ValueLimits(values=1 << 18, strings=1 << 16, keys=1 << 15, containers=3 << 12)
"""Limits of chat bodies. A tool call with its result has about 10 objects and lists, and a tool about 20.

A body of this size is validated in 50 ms.
"""


def check_size(raw: bytes, limits: ValueLimits = BODY_VALUES, what: str = "the body") -> None:
    """Raise InvalidRequest if JSON text exceeds one of the limits. Invalid JSON may pass; the parser refuses it later.

    what: name of the JSON text in the error, such as `the body`.
    """
    # Most bodies are within the limits even if the characters inside strings are counted.
    commas, keys, lists, objects, quotes = (_count(raw, mark) for mark in (b",", b":", b"[", b"{", b'"'))
    containers, many_strings = lists + objects, quotes // 2 > limits.strings
    many_values = commas + keys + containers > limits.values
    if many_values or keys > limits.keys or containers > limits.containers or many_strings:
        commas, keys, containers, strings = _outside_strings(raw)
        _check(what, "values and keys", commas + keys + containers, limits.values)
        _check(what, "strings", strings, limits.strings)
        _check(what, "keys", keys, limits.keys)
        _check(what, "lists and objects", containers, limits.containers)


def _count(raw: bytes, mark: bytes) -> int:
    return sum(raw.count(mark, start, start + PORTION) for start in range(0, len(raw), PORTION))


def _check(what: str, name: str, count: int, limit: int) -> None:
    if count > limit:
        raise InvalidRequest(f"{what} has {count} {name}; the limit is {limit}")


def _outside_strings(raw: bytes) -> tuple[int, int, int, int]:
    """Count the JSON marks outside of strings, and the strings.

    Returns the number of commas, of colons, of opening brackets and braces together, and of strings.
    """
    counts, quotes = dict.fromkeys(",:[{", 0), 0
    start = 0
    while start < len(raw):
        part = raw[start : start + PORTION]
        backslashes = len(part) - len(part.rstrip(b"\\"))
        if backslashes % 2 and start + len(part) < len(raw):
            part = part[:-1]  # the escape that begins here is part of the next portion
        start += len(part)
        if b"\\" in part:
            part = part.replace(rb"\\", b"").replace(rb"\"", b"")
        data = np.frombuffer(part, dtype=np.uint8)
        is_quote = data == ord('"')
        # uint8 overflows, but keeps the parity of the count.
        outside = ((np.cumsum(is_quote, dtype=np.uint8) + np.uint8(quotes & 1)) & 1) == 0
        for mark in counts:
            counts[mark] += int(np.count_nonzero((data == ord(mark)) & outside))
        quotes += int(np.count_nonzero(is_quote))
    return counts[","], counts[":"], counts["["] + counts["{"], quotes // 2
