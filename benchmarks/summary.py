"""Read the results of a benchmark, and compute their medians and ratios."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks.contestants import OURS, PEERS

HEAD_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int6": 1, "int5": 1, "int4": 1}
"""Bytes per weight of the output head, rounded up, by precision."""

Key = tuple[str, str, str, str]
"""Key of an entry: shape, precision, workload and contestant."""


class Summary:
    """Results of a benchmark run, with medians and ratios over its rounds.

    path: path of the run's results.json. Rates are tokens or texts per second, by `workloads.Job.counts`.
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
        """The property `name` that a contestant reported after it had loaded the model, or None."""
        for load in self.loads:
            if (load["shape"], load["precision"], load["contestant"]) == (shape, precision, contestant):
                return load.get(name)
        return None

    def rate(self, shape: str, precision: str, workload: str, contestant: str) -> float | None:
        """Median over the rounds of the rate of a contestant in a workload, or None if it was not measured."""
        rates = self._rates(shape, precision, workload, contestant)
        return statistics.median(rates) if rates else None

    def ratio(self, over: Key, under: Key) -> float | None:
        """Median over the rounds of the rate of `over` divided by that of `under`; None if no round has both.

        Both rates of a round are measured close together, so a change in the machine's speed affects both.
        """
        ratios = [rate / other for rate, other in zip(self._rates(*over), self._rates(*under), strict=False)]
        return statistics.median(ratios) if ratios else None

    def rounds(self) -> tuple[int, int]:
        """Smallest and largest number of rounds per workload, without the workload `start`, which is measured once."""
        ours = [entry for entry in self.entries if entry["contestant"] in OURS and entry["workload"] != "start"]
        counts = [len(entry["runs"]) for entry in ours if entry["runs"]]
        return (min(counts), max(counts)) if counts else (0, 0)

    def _rates(self, shape: str, precision: str, workload: str, contestant: str) -> list[float]:
        """Rate of each round. For a contestant that failed or was too slow, later rounds are missing."""
        entry = self.entry(shape, precision, workload, contestant)
        return [run["units"] / run["seconds"] for run in entry["runs"]] if entry else []

    def median(self, shape: str, precision: str, workload: str, contestant: str, name: str) -> float | None:
        """Median over the rounds of the value `name` in the outcome or its `extra`; None if no round has it."""
        entry = self.entry(shape, precision, workload, contestant)
        found = [run.get(name, run["extra"].get(name)) for run in entry["runs"]] if entry else []
        values = [value for value in found if value is not None]
        return statistics.median(values) if values else None

    def floor_share(self, shape: str, precision: str, workload: str) -> float | None:
        """Shortest possible time of linear layers and output head, divided by the run time; None if not measured.

        The products of attention are not part of this time. `benchmarks.profile` measures both times in process.
        """
        for row in self.sections.get("profile", []):
            if (row["shape"], row["precision"], row["workload"]) == (shape, precision, workload):
                return float((row["products"][1] + row["head"][1]) / row["seconds"])
        return None

    def floor_share_with_attention(self, shape: str, precision: str, workload: str) -> float | None:
        """Highest possible `floor_share`: that of a run with only matrix products, including those of attention.

        All of them run at the peak rate. None if the shortest possible time of attention is not known.
        """
        for row in self.sections.get("profile", []):
            if (row["shape"], row["precision"], row["workload"]) == (shape, precision, workload):
                products, attention = row["products"][1] + row["head"][1], row["attention"][1]
                return None if attention is None else float(products / (products + attention))
        return None

    def best_peer(self, shape: str, precision: str, workload: str, among: Collection[str] = PEERS) -> str | None:
        """Name of the fastest peer in a workload, or None if no peer was measured. among: peers to consider."""
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

        Each token reads all weights once, including the token table, which is also the output head of these models. The
        bandwidth was measured just before and after each run.
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
