"""Better translations that readers of a translated page suggest: lines of a file, for people to look at."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from server.errors import Forbidden, RequestTooLarge, StartError
from server.operations.stored_files import append_line, storing

MAX_BYTES = 64 << 20
"""Largest file. Its owner moves it away when it is full."""


class Suggestions:
    """The file of suggestions. path: None if none are taken. Raises StartError for a file that cannot be written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            try:
                path.open("a", encoding="utf-8").close()
            except OSError as error:
                raise StartError(f"suggestions: cannot write {path}: {error.strerror}") from None

    @property
    def are_taken(self) -> bool:
        return self._path is not None

    def add(self, text: str, suggestion: str, source_lang: str, target_lang: str) -> None:
        """Add a line.

        Raises Forbidden if none are taken, RequestTooLarge if the file is full, and StorageFailed if the disk is.
        """
        if self._path is None:
            raise Forbidden("suggestions are not taken on this server (--suggestions)")
        value = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "source": source_lang, "target": target_lang}
        line = json.dumps(value | {"text": text, "suggestion": suggestion}, ensure_ascii=False) + "\n"
        with storing("suggestions"):
            has_room = append_line(self._path, line.encode(), MAX_BYTES)
        if not has_room:
            raise RequestTooLarge(f"the file of suggestions has {MAX_BYTES >> 20} MiB, which is the limit")
