"""Parse the JSON files of a checkpoint within limits of size, which bound time and memory. Imports no torch."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import msgspec

MAX_JSON_BYTES = 4 << 20
"""Largest JSON file with settings. Published ones have 2 MB. Parsing it takes 0.5 s and 100 MB at most."""
MAX_VOCABULARY_BYTES = 24 << 20
"""Largest JSON file with a vocabulary: `vocab.json`, `added_tokens.json`."""
MAX_INDEX_BYTES = 64 << 20
"""Largest index of weights: 400,000 tensors with long names."""
MAX_INDEX_ENTRIES = 1 << 19
"""Most tensors of an index. Published ones have 207,000. A dictionary of them is built."""


class BadJson(ValueError):
    """A file is larger than its limit, or not JSON. The message is a noun, without the name of the file."""


class _WeightIndex(msgspec.Struct):
    weight_map: dict[str, str]


def parse_json(path: Path) -> Any:
    """The contents of a JSON file. Raises BadJson."""
    is_vocabulary = path.name.endswith(("vocab.json", "tokens.json")) or path.name.startswith("vocab")
    try:
        return json.loads(read_bounded(path, MAX_VOCABULARY_BYTES if is_vocabulary else MAX_JSON_BYTES))
    except (ValueError, RecursionError, OSError) as error:
        raise error if isinstance(error, BadJson) else BadJson("not JSON") from None


def parse_index(path: Path) -> dict[str, str]:
    """The file of each tensor, by an index of weights. Raises BadJson for a file that is no index."""
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
    """The bytes of a regular file with at most `most` of them. Raises BadJson for another file, OSError as `open` does.

    A pipe would block its reader for ever, and a device such as /dev/zero has no end.
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
