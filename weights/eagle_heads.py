"""Recognise a checkpoint with an EAGLE head, which only drafts for another model. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from weights.gguf.choose import is_gguf
from weights.json_files import NotJson, read_json_file

Version = Literal["eagle", "eagle3"]


def eagle_version(directory: Path) -> Version | None:
    """`eagle3` for a directory with an EAGLE-3 head, `eagle` for an earlier version, None for another checkpoint.

    Returns None as well if `config.json` is missing or not valid. Raises ResolveError for a file outside the directory.
    """
    if is_gguf(directory):
        return None
    try:
        settings = read_json_file(directory, "config.json")
    except NotJson:
        return None
    return eagle_version_of(settings) if isinstance(settings, dict) else None


def eagle_version_of(settings: Mapping[str, Any]) -> Version | None:
    """`eagle3` for an EAGLE-3 head, `eagle` for a head of an earlier version, None for another checkpoint.

    The name of the architecture, or of the format of the library speculators, tells the version.
    settings: contents of `config.json`.
    """
    architectures = settings.get("architectures")
    names = [str(name).lower() for name in architectures] if isinstance(architectures, list) else []
    names.append(str(settings.get("speculators_model_type", "")))
    if any("eagle3" in name for name in names):
        return "eagle3"
    return "eagle" if any("eagle" in name for name in names) else None
