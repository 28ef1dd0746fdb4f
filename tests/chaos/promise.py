"""The record of one promise: its sentence, its tests, its check and its planted bug."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.chaos.record import Record

Conditions = Literal["alone", "waiting", "any"]
"""What may run beside a check; see `Promise`."""


@dataclass(frozen=True)
class Promise:
    """One line of the list of promises.

    number, title, figure: from the list.
    tests: tests of `make test` with the same promise and small counts; the last ones are negative controls.
    check: measures the promise on the product. It takes the counts as arguments.
    bug: name of the planted bug (`tests.chaos.bugs`) with which `check` must fail. more_bugs: further ones.
    full: counts of `make chaos`.
    small: counts of the runs with planted bugs, where the check only has to fail.
    conditions: what may run at the same time. "alone": nothing, because it measures rates, ratios or times near their
        limit. "waiting": checks of lower priority, because it mostly waits. "any": other checks, because the speed of
        the machine hardly changes what it measures.
    bug_conditions: the same for the runs with planted bugs.
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
