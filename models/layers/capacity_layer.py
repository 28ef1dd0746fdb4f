"""A layer in which each expert computes only a limited number of tokens of a text."""

from __future__ import annotations

from torch import Tensor

from models.layers.layer import Layer
from models.layers.moe import MixtureOfExperts
from models.steps.step_inputs.base import StepInputs


class CapacityLayer(Layer):
    """A layer with a mixture of experts in which each expert computes a limited number of tokens per text.

    not_captured: why a step with this layer cannot be captured as a CUDA graph.
    forward: [tokens, hidden] -> [tokens, hidden], model dtype. The step must contain all tokens of whole texts, because
        the first tokens of a text use up the capacity.
    """

    not_captured = "experts with a capacity for each text"

    def _run_feed_forward(self, hidden: Tensor, step: StepInputs) -> Tensor:
        assert isinstance(self.feed_forward, MixtureOfExperts)
        result: Tensor = self.feed_forward(hidden, lengths=step.lengths)
        return result
