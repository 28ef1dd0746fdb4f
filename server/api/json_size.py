"""Limits of the number of values in a JSON body, counted from its bytes before it is parsed.

Parsing and validation hold Python's global lock for a time that grows with the number of values, not of bytes. A text
of 2 MB parses in 2 ms, and 2 MB of empty lists in 200 ms.
"""

from __future__ import annotations

import numpy as np

from server.errors import InvalidRequest

MAX_VALUES = 1 << 18
"""Values and keys in one body. Token ids are the usual reason for many: 262,144 of them parse in 15 ms."""
MAX_STRINGS = 1 << 16
"""Strings and keys in one body; a string takes five times as long as a number. No route takes as many texts."""
MAX_KEYS = 1 << 15
MAX_CONTAINERS = 1 << 13
"""Lists and objects in one body."""


def check_size(raw: bytes) -> None:
    """Raise InvalidRequest for too many values. Invalid JSON may pass; the parser refuses it later."""
    # Most bodies are within the limits even if the characters inside strings are counted.
    commas, keys = raw.count(b","), raw.count(b":")
    containers = raw.count(b"[") + raw.count(b"{")
    many_strings = raw.count(b'"') // 2 > MAX_STRINGS
    if commas + keys + containers > MAX_VALUES or keys > MAX_KEYS or containers > MAX_CONTAINERS or many_strings:
        commas, keys, containers, strings = _outside_strings(raw)
        _check("values and keys", commas + keys + containers, MAX_VALUES)
        _check("strings", strings, MAX_STRINGS)
        _check("keys", keys, MAX_KEYS)
        _check("lists and objects", containers, MAX_CONTAINERS)


def _check(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise InvalidRequest(f"the body has {count} {name}; the limit is {limit}")


def _outside_strings(raw: bytes) -> tuple[int, int, int, int]:
    """Number of commas, colons, and opening brackets and braces, all outside of strings; and number of strings."""
    if b"\\" in raw:
        raw = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    data = np.frombuffer(raw, dtype=np.uint8)
    is_quote = data == ord('"')
    outside = (np.cumsum(is_quote, dtype=np.uint8) & 1) == 0  # uint8 overflows, but keeps the parity of the count
    commas, keys, lists, objects = (int(np.count_nonzero((data == ord(mark)) & outside)) for mark in ",:[{")
    return commas, keys, lists + objects, int(np.count_nonzero(is_quote)) // 2
