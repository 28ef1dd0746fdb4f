"""Find the files of a GGUF model: one file, several pieces, or the only model in a directory."""

from __future__ import annotations

import re
from pathlib import Path

from weights.errors import GgufError, ResolveError

SUFFIX = ".gguf"
_PIECE = re.compile(r"(?P<model>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_PIECES = 1000
_MAX_LISTED = 4


def is_gguf(checkpoint: Path) -> bool:
    """Whether the path of a checkpoint denotes a GGUF file, judged by its suffix. False for a directory."""
    return checkpoint.suffix == SUFFIX and not checkpoint.is_dir()


def model_name(file: str) -> str:
    """The name of a GGUF file without `.gguf` and without a piece number such as `-00001-of-00003`."""
    match = _PIECE.fullmatch(file)
    return file.removesuffix(SUFFIX) if match is None else match["model"]


def models_in(directory: Path) -> list[Path]:
    """The GGUF models in a directory, sorted by name. A model in several pieces is listed as its first piece.

    Projectors for pictures (`mmproj*`) are left out.
    """
    found = []
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        match = _PIECE.fullmatch(path.name)
        if not path.name.startswith("mmproj") and (match is None or int(match["number"]) == 1):
            found.append(path)
    return found


def choice(source: str, directory: Path) -> Path:
    """The only GGUF model in a directory. Raises ResolveError, which lists their names, for several models.

    source: the directory as the user wrote it.
    directory: must have at least one model.
    """
    found = models_in(directory)
    if len(found) == 1:
        return found[0]
    named = ", ".join(str(Path(source) / path.name) for path in found[:_MAX_LISTED])
    more = f" (and {len(found) - _MAX_LISTED} more)" if len(found) > _MAX_LISTED else ""
    raise ResolveError(f"{source!r} has {len(found)} GGUF models: choose from {named}{more}")


def pieces(path: Path) -> list[Path]:
    """All files of the model whose first file is `path`. Raises GgufError for a later piece and for missing pieces."""
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
