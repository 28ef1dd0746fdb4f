"""Read the results of a benchmark, and compute their medians and ratios."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks.contestants import OURS, PEERS

HEAD_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int6": 1, "int5": 1, "int4": 1}
"""Bytes of a weight of the output head, rounded up."""

Key = tuple[str, str, str, str]
"""Key of an entry: shape, precision, workload, contestant."""


class Summary:
    """Results of a benchmark run, with medians and ratios over its rounds.

    path: the results.json of the run. Rates are tokens or texts per second, see `workloads.Job`.
    """

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text())
        self.about: dict[str, Any] = content["about"]
        self.sections: dict[str, Any] = content["sections"]
        self.entries: list[dict[str, Any]] = content["entries"]
        self.loads: list[dict[str, Any]] = content["loads"]

    def entry(self, shape: str, precision: str, workload: str, contestant: str) -> dict[str, Any] | None:
        key = (shape, precision, workload, contestant)
        for entry in self.entries:
            if (entry["shape"], entry["precision"], entry["workload"], entry["contestant"]) == key:
                return entry
        return None

    def load(self, shape: str, precision: str, contestant: str, name: str) -> Any:
        """A property that a contestant reported after it had loaded the model, or None."""
        for load in self.loads:
            if (load["shape"], load["precision"], load["contestant"]) == (shape, precision, contestant):
                return load.get(name)
        return None

    def rate(self, shape: str, precision: str, workload: str, contestant: str) -> float | None:
        """Median of the rates that a contestant reached in a workload, or None if it was not measured."""
        rates = self._rates(shape, precision, workload, contestant)
        return statistics.median(rates) if rates else None

    def ratio(self, over: Key, under: Key) -> float | None:
        """Rate of `over` divided by that of `under`, median over the rounds; None if no round has both.

        A change in the speed of the machine between rounds affects both rates of a round.
        """
        ratios = [rate / other for rate, other in zip(self._rates(*over), self._rates(*under), strict=False)]
        return statistics.median(ratios) if ratios else None

    def rounds(self) -> tuple[int, int]:
        """Smallest and largest number of rounds per workload. Leaves out `start`, which is measured once."""
        ours = [entry for entry in self.entries if entry["contestant"] in OURS and entry["workload"] != "start"]
        counts = [len(entry["runs"]) for entry in ours if entry["runs"]]
        return (min(counts), max(counts)) if counts else (0, 0)

    def _rates(self, shape: str, precision: str, workload: str, contestant: str) -> list[float]:
        """Rate of each round. A contestant that failed or was too slow has no values for the last rounds."""
        entry = self.entry(shape, precision, workload, contestant)
        return [run["units"] / run["seconds"] for run in entry["runs"]] if entry else []

    def median(self, shape: str, precision: str, workload: str, contestant: str, name: str) -> float | None:
        """Median over the rounds of a measured value or extra value. name: its name. None if no round has it."""
        entry = self.entry(shape, precision, workload, contestant)
        found = [run.get(name, run["extra"].get(name)) for run in entry["runs"]] if entry else []
        values = [value for value in found if value is not None]
        return statistics.median(values) if values else None

    def floor_share(self, shape: str, precision: str, workload: str) -> float | None:
        """Floor of linear layers and output head, divided by the run time in process; None if not measured.

        The floor leaves out the products of attention. `benchmarks.profile` measures both.
        """
        for row in self.sections.get("profile", []):
            if (row["shape"], row["precision"], row["workload"]) == (shape, precision, workload):
                return float((row["products"][1] + row["head"][1]) / row["seconds"])
        return None

    def floor_share_with_attention(self, shape: str, precision: str, workload: str) -> float | None:
        """Highest possible `floor_share`: that of a run with nothing but matrix products, those of attention included.

        All run at the peak rate. None where the floor of attention is not known.
        """
        for row in self.sections.get("profile", []):
            if (row["shape"], row["precision"], row["workload"]) == (shape, precision, workload):
                products, attention = row["products"][1] + row["head"][1], row["attention"][1]
                return None if attention is None else float(products / (products + attention))
        return None

    def best_peer(self, shape: str, precision: str, workload: str, among: Collection[str] = PEERS) -> str | None:
        """The fastest peer at this precision, or None. among: names of the peers that count."""
        rates = [
            (rate, name)
            for name in self.contestants(shape, precision, workload)
            if name in among and (rate := self.rate(shape, precision, workload, name)) is not None
        ]
        return max(rates)[1] if rates else None

    def contestants(self, shape: str, precision: str, workload: str) -> list[str]:
        key = (shape, precision, workload)
        return [
            entry["contestant"]
            for entry in self.entries
            if (entry["shape"], entry["precision"], entry["workload"]) == key
        ]

    def workloads(self, shape: str) -> list[str]:
        return list(dict.fromkeys(entry["workload"] for entry in self.entries if entry["shape"] == shape))

    def shapes(self) -> list[str]:
        return list(dict.fromkeys(entry["shape"] for entry in self.entries))

    def precisions(self, shape: str) -> list[str]:
        found = {entry["precision"] for entry in self.entries if entry["shape"] == shape}
        return [name for name in HEAD_ITEM_BYTES if name in found]

    def bandwidth_share(self, shape: str, precision: str) -> float | None:
        """Share of the memory bandwidth that workload A uses in process to read the weights; None if not measured.

        Each token reads all weights once. The bandwidth was measured just before and after each run. The output head of
        these models is their token table, so every table that is counted is read for each token.
        """
        entry, weights = self.entry(shape, precision, "A", "ours"), self.load(shape, precision, "ours", "weight_bytes")
        if entry is None or weights is None:
            return None
        shares = [
            weights / run["gaps_p50"] / run["read_bytes_per_second"]
            for run in entry["runs"]
            if "read_bytes_per_second" in run
        ]
        return statistics.median(shares) if shares else None
