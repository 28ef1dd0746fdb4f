"""Read the settings files of a checkpoint: `config.json`, and other JSON objects. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.checkpoint.gguf_config import gguf_config
from models.config import ConfigError
from weights.gguf.choose import is_gguf
from weights.gguf.container import read_gguf
from weights.json_files import NotJson, read_json_file


def read_settings(directory: Path, name: str) -> dict[str, Any] | None:
    """The settings in a JSON file of a checkpoint, or None if the checkpoint has no such file.

    directory: the checkpoint: a directory, or a GGUF file.
    name: path of the file inside the directory.

    Raises ConfigError for a file that is not a JSON object, and ResolveError for one outside the directory.
    """
    if name == "config.json" and is_gguf(directory):
        return gguf_config(read_gguf(directory))
    try:
        value = read_json_file(directory, name)
    except NotJson as error:
        raise ConfigError(f"{name!r} is not a JSON object: {error.reason}") from None
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{name!r} is not a JSON object")
    return value
