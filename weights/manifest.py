"""Whether a checkpoint's files are the ones that were published: SHA-256 of each against a list beside them.

Safetensors does not notice a flipped bit; a checkpoint that ships `SHA256SUMS` (lines as `sha256sum` writes them) does.
Does not know what the files mean.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from weights.resolve import ResolveError, file_in

NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


class ManifestError(ValueError):
    """A file that is not what the manifest says, or a manifest that cannot be read. One line, files by name."""


def check_manifest(directory: Path) -> int:
    """Compare every file that the directory's manifest lists; how many there were, 0 without a manifest.

    Raises ManifestError naming all files that are missing or changed.
    """
    try:
        manifest = file_in(directory, NAME)
        if manifest is None:
            return 0
        listed = [_parse(line) for line in manifest.read_text(encoding="utf-8").splitlines() if line.strip()]
        wrong = [name for digest, name in listed if _digest(file_in(directory, name)) != digest]
    except (ResolveError, UnicodeDecodeError) as error:
        raise ManifestError(f"{NAME}: {error}" if isinstance(error, ResolveError) else f"{NAME} is damaged") from None
    if wrong:
        raise ManifestError(f"files differ from {NAME} or are missing: {', '.join(sorted(wrong))}")
    return len(listed)


def write_manifest(directory: Path, names: list[str]) -> None:
    """Write the manifest of these files of the directory."""
    lines = [f"{_digest(directory / name)}  {name}\n" for name in sorted(names)]
    (directory / NAME).write_text("".join(lines), encoding="utf-8")


def _parse(line: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ManifestError(f"{NAME} is damaged: a line is not a digest and a name")
    return match[1], match[2]


def _digest(path: Path | None) -> str:
    if path is None:
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
