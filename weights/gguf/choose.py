"""Find the GGUF file of a path: a file, the first of several pieces, or a directory with exactly one model."""

from __future__ import annotations

import re
from pathlib import Path

from weights.errors import GgufError, ResolveError

SUFFIX = ".gguf"
_PIECE = re.compile(r"(?P<model>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_PIECES = 1000
_MAX_LISTED = 4


def is_gguf(checkpoint: Path) -> bool:
    """Whether the checkpoint is a GGUF file, not a directory."""
    return checkpoint.suffix == SUFFIX and not checkpoint.is_dir()


def model_name(file: str) -> str:
    """The name of a GGUF file without its suffix and the number of its piece. Other names do not change."""
    match = _PIECE.fullmatch(file)
    return file.removesuffix(SUFFIX) if match is None else match["model"]


def models_in(directory: Path) -> list[Path]:
    """The models of a directory: each GGUF file, and of a model in pieces the first one. Projectors are left out."""
    found = []
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        match = _PIECE.fullmatch(path.name)
        if not path.name.startswith("mmproj") and (match is None or int(match["number"]) == 1):
            found.append(path)
    return found


def choice(source: str, directory: Path) -> Path:
    """The only model of a directory with GGUF files. Raises ResolveError for several, with their names.

    directory: has at least one of `models_in`.
    """
    found = models_in(directory)
    if len(found) == 1:
        return found[0]
    named = ", ".join(str(Path(source) / path.name) for path in found[:_MAX_LISTED])
    more = f" (and {len(found) - _MAX_LISTED} more)" if len(found) > _MAX_LISTED else ""
    raise ResolveError(f"{source!r} has {len(found)} GGUF models: choose from {named}{more}")


def pieces(path: Path) -> list[Path]:
    """All files of the model that begins in this file. Raises GgufError for a later piece and for missing ones."""
    match = _PIECE.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    names = [f"{match['model']}-{number:05}-of-{count:05}{SUFFIX}" for number in range(1, min(count, _MAX_PIECES) + 1)]
    if int(match["number"]) != 1:
        raise GgufError(f"{path.name!r} is a later piece of a model: write its first piece, {names[0]}")
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise GgufError(f"{path.name!r} is one of {count} pieces, of which {len(missing)} are missing ({missing[0]})")
    return [path.parent / name for name in names]
