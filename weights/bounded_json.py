"""Parse the JSON files of a checkpoint. Limits on the file size bound time and memory. Imports no torch."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import msgspec

MAX_JSON_BYTES = 4 << 20
"""Largest JSON file with settings, in bytes. Published files have up to 2 MB.

Parsing a file of this size takes up to 0.5 s and 100 MB of memory."""
MAX_VOCABULARY_BYTES = 24 << 20
"""Largest JSON file with a vocabulary (`vocab.json`, `added_tokens.json`), in bytes."""
MAX_INDEX_BYTES = 64 << 20
"""Largest index of weights, in bytes; enough for 400,000 tensors with long names."""
MAX_INDEX_ENTRIES = 1 << 19
"""Largest number of tensors in an index, which is parsed to a dictionary. Published indices have up to 207,000."""


class BadJson(ValueError):
    """A file is larger than its limit, or not JSON. The message is a phrase such as `not JSON`, without a file name."""


class _WeightIndex(msgspec.Struct):
    weight_map: dict[str, str]


def parse_json(path: Path) -> Any:
    """The contents of a JSON file. Raises BadJson for a file that is too large, cannot be read, or is not JSON."""
    is_vocabulary = path.name.endswith(("vocab.json", "tokens.json")) or path.name.startswith("vocab")
    try:
        return json.loads(read_bounded(path, MAX_VOCABULARY_BYTES if is_vocabulary else MAX_JSON_BYTES))
    except (ValueError, RecursionError, OSError) as error:
        raise error if isinstance(error, BadJson) else BadJson("not JSON") from None


def parse_index(path: Path) -> dict[str, str]:
    """Read an index of weights: the name of the file that holds each tensor, by tensor name.

    Raises BadJson for a file that is no index, is empty, or exceeds a limit.
    """
    try:
        content = read_bounded(path, MAX_INDEX_BYTES)
        if (entries := content.count(b'":')) > MAX_INDEX_ENTRIES:
            raise BadJson(f"{entries:,} members, and the limit is {MAX_INDEX_ENTRIES:,}")
        found = msgspec.json.decode(content, type=_WeightIndex).weight_map
    except (msgspec.MsgspecError, RecursionError, OSError, ValueError) as error:
        raise error if isinstance(error, BadJson) else BadJson("no JSON object with a 'weight_map'") from None
    if not found:
        raise BadJson("an object with an empty 'weight_map'")
    return found


def read_bounded(path: Path, most: int) -> bytes:
    """The contents of a regular file of at most `most` bytes.

    Raises BadJson for a larger file, and for a file that is not regular: reading a pipe may block for ever, and a
    device such as /dev/zero has no end. Raises OSError as `open` does.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BadJson("not a regular file")
    size = status.st_size
    if size <= most:
        with path.open("rb") as file:
            content = file.read(most + 1)  # files of /proc state no size
        size = len(content)
    if size > most:
        raise BadJson(f"{size:,} bytes, and the limit is {most:,}")
    return content
