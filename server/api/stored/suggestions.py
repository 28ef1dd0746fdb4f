"""Better translations that users suggest. They are appended to a file for the operator to read, one JSON line each."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from server.errors import Forbidden, RequestTooLarge, StartError
from server.operations.stored_files import append_line, storing

MAX_BYTES = 64 << 20
"""Maximum size of the file. When it is full, the operator must move it away."""


class Suggestions:
    """The file of suggestions. Raises StartError if it cannot be written.

    path: None if the server accepts no suggestions.
    """

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
        """Append a suggested translation to the file.

        Raises Forbidden if the server accepts no suggestions, RequestTooLarge if the file has reached `MAX_BYTES`, and
        StorageFailed if it cannot be written, for example because the disk is full.
        """
        if self._path is None:
            raise Forbidden("suggestions are not taken on this server (--suggestions)")
        value = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "source": source_lang, "target": target_lang}
        line = json.dumps(value | {"text": text, "suggestion": suggestion}, ensure_ascii=False) + "\n"
        with storing("suggestions"):
            has_room = append_line(self._path, line.encode(), MAX_BYTES)
        if not has_room:
            raise RequestTooLarge(f"the file of suggestions has {MAX_BYTES >> 20} MiB, which is the limit")
