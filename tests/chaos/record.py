"""The result of one check: number of runs, the worst value of each quantity with its limit, and failures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

MAX_FAILURES = 5
"""Number of failures of which the text is kept. All failures are counted."""


@dataclass
class Measure:
    """The worst value of a quantity. at_least: whether the limit is a minimum, so that the smallest value is worst."""

    what: str
    worst: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def passed(self) -> bool:
        return self.worst >= self.limit if self.at_least else self.worst <= self.limit

    def __str__(self) -> str:
        return f"{self.what} {self.worst:.3g} {self.unit} ({'≥' if self.at_least else '≤'} {self.limit:g})"


@dataclass
class Record:
    """The result of one check.

    unit: name of one run in the report, such as "request". runs: number of runs.
    details: further measurements for the report, by name of the case.
    """

    unit: str
    runs: int = 0
    measures: dict[str, Measure] = field(default_factory=dict)
    num_failures: int = 0
    failures: list[str] = field(default_factory=list)
    details: dict[str, str] = field(default_factory=dict)

    def most(self, what: str, value: float, limit: float, unit: str) -> None:
        """Add a value that must not exceed the limit. what: name of the quantity."""
        known = self.measures.setdefault(what, Measure(what, value, limit, unit))
        known.worst = max(known.worst, value)

    def least(self, what: str, value: float, limit: float, unit: str) -> None:
        """Add a value that must reach the limit. what: name of the quantity."""
        known = self.measures.setdefault(what, Measure(what, value, limit, unit, at_least=True))
        known.worst = min(known.worst, value)

    def must(self, condition: bool, failure: str) -> bool:
        """Count a failure if the condition is false. Returns the condition."""
        if not condition:
            self.num_failures += 1
            if len(self.failures) < MAX_FAILURES:
                self.failures.append(failure)
        return condition

    def include(self, other: Record, prefix: str = "") -> Record:
        """Add the measurements of another record. prefix: text before their names. Returns this record."""
        self.runs += other.runs
        for measure in other.measures.values():
            self.measures[prefix + measure.what] = replace(measure, what=prefix + measure.what)
        self.num_failures += other.num_failures
        self.failures = [*self.failures, *other.failures][:MAX_FAILURES]
        self.details |= other.details
        return self

    @property
    def passed(self) -> bool:
        return self.runs > 0 and not self.num_failures and all(measure.passed for measure in self.measures.values())

    def to_json(self) -> dict[str, Any]:
        """The record as JSON data, for the file of results."""
        measures = [asdict(measure) | {"passed": measure.passed} for measure in self.measures.values()]
        return {
            "unit": self.unit,
            "runs": self.runs,
            "measures": measures,
            "num_failures": self.num_failures,
            "failures": self.failures,
            "details": self.details,
            "passed": self.passed,
        }
