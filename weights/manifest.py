"""Compare the files of a checkpoint with the SHA-256 digests in its `SHA256SUMS`, and write that file.

The manifest has the format of the `sha256sum` program. It detects changed bits, which the safetensors format does not.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from weights.bounded_json import BadJson, read_bounded
from weights.errors import ResolveError
from weights.resolve import file_in

NAME = "SHA256SUMS"
MAX_BYTES = 1 << 20
"""Largest manifest, enough for about 8,000 files. The largest published checkpoints have 500."""
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


class ManifestError(ValueError):
    """A file differs from the manifest, or the manifest cannot be read. The message is one line."""


def check_manifest(directory: Path) -> int:
    """Compare the files of a directory with their digests in its manifest. Returns the number of files compared.

    The result is 0 for a directory without a manifest.
    Raises ManifestError, which names all missing and changed files, or says that the manifest is damaged.
    """
    try:
        manifest = file_in(directory, NAME)
        if manifest is None:
            return 0
        text = read_bounded(manifest, MAX_BYTES).decode("utf-8")
        listed = list(dict.fromkeys(_parse(line) for line in text.splitlines() if line.strip()))
        if len({name for _, name in listed}) < len(listed):
            raise ManifestError(f"{NAME} is damaged: it has two digests of one file")
        wrong = [name for digest, name in listed if _digest(file_in(directory, name)) != digest]
    except ResolveError as error:
        raise ManifestError(f"{NAME}: {error}") from None
    except BadJson as error:
        raise ManifestError(f"{NAME} is damaged: {error}") from None
    except UnicodeDecodeError:
        raise ManifestError(f"{NAME} is damaged") from None
    if wrong:
        raise ManifestError(f"files differ from {NAME} or are missing: {', '.join(sorted(wrong))}")
    return len(listed)


def write_manifest(directory: Path, names: list[str]) -> None:
    """Write the manifest of a directory, with the digests of the files `names`."""
    lines = [f"{_digest(directory / name)}  {name}\n" for name in sorted(names)]
    (directory / NAME).write_text("".join(lines), encoding="utf-8")


def _parse(line: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ManifestError(f"{NAME} is damaged: a line does not consist of a digest and a file name")
    return match[1], match[2]


def _digest(path: Path | None) -> str:
    if path is None:
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
