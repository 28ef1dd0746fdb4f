"""Read the JSON files of a checkpoint. In a GGUF file, the metadata takes their place. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weights.bounded_json import BadJson, parse_json
from weights.gguf.choose import is_gguf
from weights.resolve import file_in


class NotJson(ValueError):
    """A file is not JSON, or only a null, or too large. reason: phrase for messages, such as `not JSON`."""

    def __init__(self, name: str, reason: str = "not JSON") -> None:
        super().__init__(name)
        self.reason = reason


def read_json_file(checkpoint: Path, name: str) -> Any:
    """The contents of a JSON file, or None if the checkpoint has no such file.

    checkpoint: path of a directory or of a GGUF file.
    name: path of the JSON file inside the directory.
    Raises NotJson for a file that is damaged or too large, and ResolveError for a file outside the directory and for a
    damaged GGUF file.
    """
    if is_gguf(checkpoint):
        from weights.gguf.container import read_gguf
        from weights.gguf.documents import document

        return document(read_gguf(checkpoint), name)
    path = file_in(checkpoint, name)
    if path is None:
        return None
    try:
        value = parse_json(path)
    except BadJson as error:
        raise NotJson(name, str(error)) from None
    if value is None:
        raise NotJson(name)
    return value
