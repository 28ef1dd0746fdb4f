"""Hypotheses of a beam search, and its running beams in a form that costs little time per step.

A step gives each running beam a parent and a token. Both are stored as they are. The texts are built from them only
when something reads the texts: when a hypothesis ends, and for streams, stop strings and required terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from server.ipc.wire.logprobs import TokenLogprob

Float32s = NDArray[np.float32]
Describe = Callable[[int, int], TokenLogprob]
"""Maps (row of this step, token id) to the log-probability to report."""

ZERO = np.float32(0.0)
NEVER = np.float32(-1e9)
"""Score of impossible beams: far below any real score, and finite, so that sums do not become NaN."""
LEAST_POSSIBLE = NEVER / 2
"""The scores of possible beams are larger than this number."""


@dataclass(slots=True)
class Beam:
    """One hypothesis.

    tokens: new tokens.
    score: sum of log-probabilities of a running beam, final score of a finished one.
    logprobs: log-probabilities to report, one for each token; empty if not requested.
    is_possible: False for a beam that only fills a row, because there are fewer possible continuations than beams.
    """

    tokens: list[int] = field(default_factory=list)
    score: np.float32 = ZERO
    logprobs: list[TokenLogprob] = field(default_factory=list)
    is_possible: bool = True


class RunningBeams:
    """The running beams of one search, best first.

    scores: [beams], float32, sums of log-probabilities.
    """

    def __init__(self, beams: Sequence[Beam]) -> None:
        self.scores: Float32s = np.array([beam.score for beam in beams], dtype=np.float32)
        self._texts = [beam.tokens for beam in beams]
        self._logprobs = [beam.logprobs for beam in beams]
        self._steps: list[tuple[list[int], list[int]]] = []
        """(parents, tokens) of each recent step.

        `texts` appends these tokens to `_texts`, and then empties the list.
        """

    def __len__(self) -> int:
        return len(self.scores)

    def extend(self, parents: list[int], tokens: list[int], scores: Float32s, describe: Describe | None) -> None:
        """Replace the beams by their continuations.

        parents, tokens: for each new beam, the index of the beam that it continues, and its new token.
        scores: [beams], float32.
        describe: returns the log-probability of a new token; None if log-probabilities are not reported.
        """
        if describe is not None:
            pairs = zip(parents, tokens, strict=True)
            self._logprobs = [[*self._logprobs[parent], describe(parent, token)] for parent, token in pairs]
        self._steps.append((parents, tokens))
        self.scores = scores

    @property
    def last_tokens(self) -> list[int]:
        """The last token of each beam. Every beam must have a token."""
        return self._steps[-1][1] if self._steps else [text[-1] for text in self._texts]

    @property
    def texts(self) -> list[list[int]]:
        """The new tokens of each beam."""
        if self._steps:
            texts = []
            for row in range(len(self.scores)):
                tail = []
                for parents, tokens in reversed(self._steps):
                    tail.append(tokens[row])
                    row = parents[row]
                texts.append([*self._texts[row], *reversed(tail)])
            self._texts, self._steps = texts, []
        return self._texts

    @property
    def logprobs(self) -> list[list[TokenLogprob]]:
        """For each beam, the log-probabilities to report, one for each token; empty lists if none are reported."""
        return self._logprobs if len(self._logprobs) == len(self.scores) else [[] for _ in self.scores]

    def beams(self) -> list[Beam]:
        """The beams as hypotheses."""
        possible = (self.scores > LEAST_POSSIBLE).tolist()
        return list(map(Beam, self.texts, self.scores, self.logprobs, possible))
