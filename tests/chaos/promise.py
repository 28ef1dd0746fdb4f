"""The record of one promise: its sentence, its tests, its check and its planted bug."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.chaos.record import Record

Conditions = Literal["alone", "waiting", "any"]
"""Which other checks may run at the same time as a check, see `Promise.conditions`."""


@dataclass(frozen=True)
class Promise:
    """A promise of the product about its reliability.

    number, title, figure: number, sentence and required value in the list of promises.
    tests: tests of `make test` about the same promise with small counts; the last ones are negative controls.
    check: function that measures the promise on the product. Its arguments are the counts.
    bug: name of the planted bug (`tests.chaos.bugs`) with which `check` must fail. more_bugs: names of further ones.
    full: counts for `make chaos`.
    small: counts for the runs with planted bugs, where the check only has to fail.
    conditions: which other checks may run at the same time. "alone": none, because the check measures rates, ratios, or
        times near their limit. "waiting": checks with a lower priority, because this one mostly waits. "any": all,
        because the speed of the machine hardly changes the result.
    bug_conditions: the conditions for the runs with planted bugs.
    """

    number: int
    title: str
    figure: str
    tests: tuple[str, ...]
    check: Callable[..., Record]
    bug: str
    full: Mapping[str, float] = field(default_factory=dict)
    small: Mapping[str, float] = field(default_factory=dict)
    more_bugs: tuple[str, ...] = ()
    conditions: Conditions = "alone"
    bug_conditions: Conditions = "any"

    @property
    def bugs(self) -> tuple[str, ...]:
        return self.bug, *self.more_bugs
