"""Store the results of all measurements in a JSON file, which is written after each result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Results:
    """Rows of results, by model and contestant. path: path of the file, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.models: dict[str, dict[str, Row]] = json.loads(path.read_text()) if path.exists() else {}

    def has(self, model: str, contestant: str, tokens: int | None = None) -> bool:
        """Whether there is a row that was measured on this number of tokens. tokens: None for any number."""
        row = self.models.get(model, {}).get(contestant)
        return row is not None and (tokens is None or row["tokens"] == tokens)

    def add(self, model: str, row: Row) -> None:
        """Store a row in place of the contestant's older one, write the file, and print the row."""
        self.models.setdefault(model, {})[row["name"]] = row
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.models, indent=1) + "\n")
        print(model, json.dumps(row), flush=True)
