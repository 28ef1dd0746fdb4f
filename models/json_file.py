"""The JSON files that a checkpoint says things in. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from models.config import ConfigError
from weights.resolve import file_in


def json_object(directory: Path, name: str) -> dict[str, Any] | None:
    """What a file of the checkpoint holds; None where there is none. Raises ConfigError where it is no object, and
    ResolveError where it lies outside."""
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
