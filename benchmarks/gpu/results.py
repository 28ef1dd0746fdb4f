"""Results of `benchmarks.gpu` by device and row, which are kept from one run to the next.

A file of results is JSON: {device: {"device": description, "limits": measured limits, "rows": {row: entry}}}. An entry
has the stage, the state, the date, and a result or an error:

- `measured`: it has a result, and is not measured again.
- `failed`, `skipped`: it has an error, or the reason why this device cannot measure it; it is not tried again.
- `cut`: the run ended while it was being measured. The next run tries it once more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.device import Limits
from benchmarks.gpu.row import Result

State = Literal["measured", "failed", "skipped", "cut"]
MAX_CUTS = 2
"""A row that was cut this number of times is not tried again, because it takes longer than a run."""

Results = dict[str, dict[str, Any]]
"""The content of a file of results."""


def read(files: Iterable[Path]) -> Results:
    """Read files of results and merge them. Files that do not exist are left out."""
    found: Results = {}
    for file in files:
        if file.exists():
            merge(found, json.loads(file.read_text()))
    return found


def merge(into: Results, added: Mapping[str, Mapping[str, Any]]) -> None:
    """Merge results into others. A row is replaced, unless only the older entry was measured."""
    for device, run in added.items():
        kept = into.setdefault(device, {"rows": {}})
        kept |= {name: run[name] for name in ("device", "limits") if name in run}
        for name, entry in run["rows"].items():
            old = kept["rows"].get(name)
            if old is None or entry["state"] == "measured" or old["state"] != "measured":
                kept["rows"][name] = entry


def write(file: Path, text: str) -> None:
    """Replace the text of a file atomically, so that no reader sees a part of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f"{file.name}.new")
    unfinished.write_text(text)
    unfinished.replace(file)


class Record:
    """The results of a run on one device, with those of earlier runs, written to a file after each row.

    file: file for the results, which may also contain results of other devices. earlier: results of earlier runs.
    description: description of the device, including its name. limits: measured limits of the device.
    """

    def __init__(self, file: Path, earlier: Results, description: Mapping[str, Any], limits: Limits) -> None:
        self._file = file
        self.results = earlier
        self.device = str(description["name"])
        run = self.results.setdefault(self.device, {"rows": {}})
        run |= {"device": dict(description), "limits": limits.plain()}
        self._rows: dict[str, dict[str, Any]] = run["rows"]
        self._write()

    def forget(self, names: Iterable[str]) -> None:
        """Delete the results of rows, so that these rows are measured again. names: names of the rows."""
        for name in names:
            self._rows.pop(name, None)
        self._write()

    def pending(self, names: Sequence[str]) -> list[str]:
        """Those of `names` whose rows are still to be measured."""
        return [name for name in names if self._is_pending(self._rows.get(name))]

    @staticmethod
    def _is_pending(entry: Mapping[str, Any] | None) -> bool:
        return entry is None or (entry["state"] == "cut" and entry["cuts"] < MAX_CUTS)

    def done(self) -> dict[str, Result]:
        """The results of the measured rows, by name."""
        return {name: Result(**entry["result"]) for name, entry in self._rows.items() if entry["state"] == "measured"}

    def entry(self, name: str) -> Mapping[str, Any] | None:
        """The entry of a row; None if it was not tried."""
        return self._rows.get(name)

    def add(self, stage: str, name: str, result: Result) -> None:
        """Add a measured row."""
        self._add(stage, name, "measured", result=result.plain())

    def add_failure(self, stage: str, name: str, state: State, error: str) -> None:
        """Add a row that was not measured. error: the error or the reason, one line."""
        more: dict[str, Any] = {"error": error}
        if state == "cut":
            more["cuts"] = self._rows.get(name, {}).get("cuts", 0) + 1
        self._add(stage, name, state, **more)

    def _add(self, stage: str, name: str, state: State, **more: Any) -> None:
        self._rows[name] = {"stage": stage, "state": state, "date": time.strftime("%Y-%m-%d"), **more}
        self._write()

    def _write(self) -> None:
        write(self._file, json.dumps(self.results, indent=1) + "\n")
