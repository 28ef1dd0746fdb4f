"""Several models on one device: deficit round-robin (Shreedhar and Varghese 1995) on measured step time.

A model whose turn it is runs steps until it has used up its quantum; one long step is paid back by missed turns. So
busy models get equal time, however long their steps are. Knows names and seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

QUANTUM_SECONDS = 0.02


class DeficitRoundRobin:
    """Turns among names that are known from the start."""

    def __init__(self, names: Iterable[str], quantum_seconds: float = QUANTUM_SECONDS) -> None:
        self._ring = deque(names)
        self._deficit = dict.fromkeys(self._ring, 0.0)
        self._quantum = quantum_seconds

    def pick(self, busy: Collection[str]) -> str | None:
        """Whose step is next; None if nobody has work. Who has none saves up nothing."""
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
            # A turn begins for the next one; who owes more than a quantum is passed over until it is paid.
            following = self._ring[0]
            if following in busy:
                self._deficit[following] = min(self._deficit[following] + self._quantum, self._quantum)

    def charge(self, name: str, seconds: float) -> None:
        """A step of this model took so long."""
        self._deficit[name] -= seconds
