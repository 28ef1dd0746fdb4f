"""A layer whose experts have a capacity: each computes a limited number of tokens of a text."""

from __future__ import annotations

from torch import Tensor

from models.layers.layer import Layer
from models.layers.moe import MixtureOfExperts
from models.steps.step_inputs.base import StepInputs


class CapacityLayer(Layer):
    """A layer whose mixture of experts has a capacity per text, so that it needs the length of each text.

    forward: as `Layer.forward`, but for whole texts only, and all their tokens (see `StackConfig.needs_all_rows`).
    """

    def _run_feed_forward(self, hidden: Tensor, step: StepInputs) -> Tensor:
        assert isinstance(self.feed_forward, MixtureOfExperts)
        result: Tensor = self.feed_forward(hidden, lengths=step.lengths)
        return result
