"""Read the JSON files of a checkpoint. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from models.config import ConfigError
from weights.resolve import file_in


def json_object(directory: Path, name: str) -> dict[str, Any] | None:
    """Content of a JSON file of a checkpoint, or None if the checkpoint has no such file.

    directory: the checkpoint directory.
    name: path of the file inside the directory.

    Raises ConfigError for a file that is not a JSON object, and ResolveError for one outside the directory.
    """
    path = file_in(directory, name)
    if path is None:
        return None
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{name!r} is not a JSON object")
    return value
