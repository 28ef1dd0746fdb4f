"""The lanes of a beam search whose beams a device moves without the host (`server.engine.stepping.steps_ahead`).

A lane is one sequence of a group. It writes its tokens to its own blocks, whatever text its beam continues. The text of
a beam therefore consists of tokens from several lanes. Imports no torch.
See docs/decisions/0183-beams-on-the-device.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class BeamLanes:
    """The lanes of one beam search, and where its beams went.

    start: position of the first token that was written in lanes. Before it, each lane has the text of one beam.
    num_beams: number of lanes, and of beams.
    """

    def __init__(self, start: int, num_beams: int) -> None:
        self.start, self._num_beams = start, num_beams
        self._parents: list[Sequence[int]] = []

    @property
    def num_steps(self) -> int:
        """Number of steps whose beams the host knows."""
        return len(self._parents)

    def follow(self, parents: Sequence[int]) -> None:
        """Add a step. parents: for each new beam, the beam that it continues."""
        self._parents.append(parents)

    def ancestors(self) -> NDArray[np.int64]:
        """The lane that has the token of each beam at position `start + step`: [steps, beams], int64."""
        lanes = np.empty((self.num_steps, self._num_beams), dtype=np.int64)
        row = list(range(self._num_beams))
        for step in range(self.num_steps - 1, -1, -1):
            parents = self._parents[step]
            row = [parents[beam] for beam in row]
            lanes[step] = row
        return lanes
