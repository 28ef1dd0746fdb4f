"""Layers and stacks with several streams of hidden states, of which each layer computes one stream (AltUp, Gemma 3n).

A hidden state contains the streams of a token one after the other: [tokens, streams * hidden].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from models.backends.choice import backend
from models.backends.torch.activations import by_rows
from models.config import AlternatingLayerConfig, StreamsConfig
from models.layers.layer_input import LayerWithInput
from models.layers.linear import Linear, parameter
from models.layers.norms import make_norm
from models.steps.step_inputs.base import StepInputs

_MIN_MEAN_SQUARE = 1e-5


class Streams(nn.Module):
    """Expands hidden states to several streams before the first layer, and merges the streams after the last layer.

    All streams of a token are scaled to the root mean square of the first stream.

    expand, merge: one linear for each stream except the first.
    Source: Baykal et al. 2023, arXiv:2301.13310, section 3; published code of Gemma 3n.
    """

    def __init__(self, config: StreamsConfig, hidden_size: int) -> None:
        super().__init__()
        self.count = config.count
        self.expand = nn.ModuleList(Linear(hidden_size, hidden_size, False) for _ in range(config.count - 1))
        self.merge = nn.ModuleList(Linear(hidden_size, hidden_size, False) for _ in range(config.count - 1))

    def expanded(self, x: Tensor) -> Tensor:
        """Compute all streams from the first stream: [tokens, hidden] -> [tokens, streams * hidden]."""
        return torch.cat([x, *(_with_magnitude_of(linear(x), x) for linear in self.expand)], 1)

    def merged(self, x: Tensor) -> Tensor:
        """Project all streams except the first, and return the mean: [tokens, streams * hidden] -> [tokens, hidden]."""
        first, *others = (stream.contiguous() for stream in x.chunk(self.count, 1))
        total = first
        for linear, other in zip(self.merge, others, strict=True):
            total = total + _with_magnitude_of(linear(other), first)
        return total / self.count


def _with_magnitude_of(x: Tensor, other: Tensor) -> Tensor:
    """Scale each row of x to the root mean square of the same row of `other`. Both: [tokens, hidden]."""
    magnitude = (other**2).mean(-1, keepdim=True) ** 0.5
    return x * magnitude / (x**2).mean(-1, keepdim=True).clamp(min=_MIN_MEAN_SQUARE).sqrt()


class AlternatingLayer(LayerWithInput):
    """A layer that predicts all streams, computes one (active) stream, and corrects all by the active stream's error.

    router: [streams, hidden], weight of the router. Its outputs determine the factors of predictions and corrections.
    prediction: [streams * streams, streams], correction: [streams, streams]: from the router's outputs to the factors.
        Router, prediction and correction are never quantised.
    correction_scale: [hidden], factor of the corrected active stream; or None.
    down, up, low_rank_norm: low-rank projection of the normed input x of attention. `x + low_rank(x)` is added to the
        sum after attention.
    """

    def __init__(self, config: AlternatingLayerConfig, hidden_size: int, index: int) -> None:
        super().__init__(config, hidden_size, index)
        self.streams, self.active = config.streams, config.active
        self.router_norm = make_norm(config.router_norm, hidden_size)
        self.router = parameter(config.streams, hidden_size)
        self.prediction = parameter(config.streams**2, config.streams)
        self.correction = parameter(config.streams, config.streams)
        self.correction_scale = parameter(hidden_size) if config.scales_correction else None
        self.down = Linear(hidden_size, config.rank, bias=False)
        self.up = Linear(config.rank, hidden_size, bias=False)
        self.low_rank_norm = make_norm(config.router_norm, hidden_size)

    def forward(self, x: Tensor, step: StepInputs) -> Tensor:
        assert self.attention is not None and self.feed_forward is not None and self.low_rank_norm is not None
        predictions = self._predicted(x.view(x.shape[0], self.streams, -1))
        active = predictions[:, self.active].contiguous()
        hidden = self.attention_norms.norm_input(active)
        low_rank = hidden + self.low_rank_norm(self.up(self.down(hidden)))
        attended = step.self_attention(self.index, self.attention, hidden)
        predictions, active, low_rank = (
            step.select_rows(self.index, tensor) for tensor in (predictions, active, low_rank)
        )
        mixed = (self.attention_norms.add_residual(active, attended) + low_rank) / math.sqrt(2)
        result = self.feed_forward(self.feed_forward_norms.norm_input(mixed))
        corrected = self._corrected(predictions, self.feed_forward_norms.add_residual(mixed, result))
        first = corrected[:, self.active]
        first = first.contiguous() if self.correction_scale is None else first * self.correction_scale
        corrected[:, 1:] += self.input_result(first, step)[:, None]
        return corrected.flatten(1)

    def _weights(self, x: Tensor) -> Tensor:
        """Outputs of the router, from -1 to 1: [tokens, hidden] -> [tokens, streams]."""
        assert self.router_norm is not None
        normed = self.router_norm(x) / x.shape[1]
        return by_rows(torch.tanh, backend(normed).linear(normed, self.router, None))

    def _predicted(self, streams: Tensor) -> Tensor:
        """Predict the streams after the layer from the streams before it.

        Each prediction is a stream plus a linear combination of all streams, whose factors differ from token to token.
        streams: [tokens, streams, hidden]. Returns the same shape.
        """
        weights = self._weights(streams[:, self.active].contiguous())
        factors = backend(weights).linear(weights, self.prediction, None).view(-1, self.streams, self.streams)
        # Added one after another, so that the bits of a token do not depend on the number of tokens.
        total = streams
        for source in range(self.streams):
            total = total + factors[:, :, source, None] * streams[:, source, None]
        return total

    def _corrected(self, predictions: Tensor, computed: Tensor) -> Tensor:
        """Add the prediction error of the active stream to each prediction, times a factor per token and stream.

        predictions: [tokens, streams, hidden]. computed: [tokens, hidden], the active stream after the layer.
        Returns a tensor like the predictions.
        """
        weights = self._weights(computed)
        factors = backend(weights).linear(weights, self.correction, None) + 1.0
        error = computed - predictions[:, self.active]
        return predictions + error[:, None] * factors[:, :, None]
