"""Measures the share of predicted tokens that are right, separately for each class of predictions."""

from __future__ import annotations

from collections.abc import Sequence


class Acceptance:
    """Share of right predictions in each class. Later predictions have more weight than earlier ones.

    decay: each new prediction multiplies the weight of earlier ones of its class by this factor.
    classes: number of classes.
    """

    def __init__(self, decay: float, classes: int) -> None:
        self._decay = decay
        self._right = [0.0] * classes
        self._all = [0.0] * classes

    def count(self, index: int, is_right: bool) -> None:
        """Count one predicted token as right or wrong. index: index of the class of the prediction."""
        self._right[index] = self._decay * self._right[index] + is_right
        self._all[index] = self._decay * self._all[index] + 1

    def rates(self, assumed: Sequence[float], weight: float) -> list[float]:
        """Share of right predictions in each class. assumed: prior shares, which count as `weight` predictions."""
        return [
            (right + weight * rate) / (count + weight)
            for right, count, rate in zip(self._right, self._all, assumed, strict=True)
        ]
