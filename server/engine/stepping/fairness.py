"""Shares a device among models: deficit round-robin (Shreedhar and Varghese 1995) on measured step time.

The models take turns. In its turn, a model runs steps until it has used up a fixed time, the quantum. A model whose
step took longer misses turns afterwards. Busy models therefore get equal time, however long their steps are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

QUANTUM_SECONDS = 0.002
"""Seconds of one turn. Short, so that a model with streams does not wait for several steps of another model."""


class DeficitRoundRobin:
    """Chooses the model of the next step. names: names of all models. quantum_seconds: time of one turn."""

    def __init__(self, names: Iterable[str], quantum_seconds: float = QUANTUM_SECONDS) -> None:
        self._ring = deque(names)
        self._deficit = dict.fromkeys(self._ring, 0.0)
        self._quantum = quantum_seconds

    def add(self, name: str) -> None:
        """Add a model, which then takes turns with the others. name: name of the model."""
        self._ring.append(name)
        self._deficit[name] = 0.0

    def remove(self, name: str) -> None:
        """Remove a model, which then gets no more turns. name: name of the model."""
        self._ring.remove(name)
        del self._deficit[name]

    def pick(self, busy: Collection[str]) -> str | None:
        """Name of the model that runs the next step; None if no model is busy.

        busy: names of the models with work. A model without work gets no credit for the turns that it misses.
        """
        for name in self._ring:
            if name not in busy:
                self._deficit[name] = min(self._deficit[name], 0.0)
        waiting = [name for name in self._ring if name in busy]
        if not waiting:
            return None
        if len(waiting) == 1:
            self._deficit[waiting[0]] = 0.0
            return waiting[0]
        while True:
            name = self._ring[0]
            if name in busy and self._deficit[name] > 0:
                return name
            self._ring.rotate(-1)
            # The next model's turn begins. A model that owes more than a quantum is skipped until its debt is paid.
            following = self._ring[0]
            if following in busy:
                self._deficit[following] = min(self._deficit[following] + self._quantum, self._quantum)

    def charge(self, name: str, seconds: float) -> None:
        """Subtract the duration of a step from the time of its model."""
        self._deficit[name] -= seconds
