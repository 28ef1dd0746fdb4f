"""Records which beam each beam of a search continues, while a device advances the search without the host.

Each beam of such a search writes its new tokens to the KV blocks of one sequence, called its lane, even if the beam
continues another beam. The text of a beam therefore has its tokens in several lanes. `BeamLanes` finds them.
Imports no torch. Used by `server.engine.stepping.steps_ahead`. See docs/decisions/0183-beams-on-the-device.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class BeamLanes:
    """Parents of the beams of one search, step by step, and from them the lane of each token.

    Beam i writes its new token to lane i.

    start: position of the first token that was written to lanes. The earlier tokens of a beam are all in the same lane.
    num_beams: number of beams, and of lanes.
    """

    def __init__(self, start: int, num_beams: int) -> None:
        self.start, self._num_beams = start, num_beams
        self._parents: list[Sequence[int]] = []

    @property
    def num_steps(self) -> int:
        """Number of steps that `follow` has recorded."""
        return len(self._parents)

    def follow(self, parents: Sequence[int]) -> None:
        """Record a step. parents: for each beam after the step, the index of the beam that it continues."""
        self._parents.append(parents)

    def ancestors(self) -> NDArray[np.int64]:
        """For each beam, the lanes that hold the tokens of its text: [steps, beams], int64.

        Entry [i, j] is the index of the lane that holds the token of beam j at position `start + i`.
        """
        lanes = np.empty((self.num_steps, self._num_beams), dtype=np.int64)
        row = list(range(self._num_beams))
        for step in range(self.num_steps - 1, -1, -1):
            parents = self._parents[step]
            row = [parents[beam] for beam in row]
            lanes[step] = row
        return lanes
