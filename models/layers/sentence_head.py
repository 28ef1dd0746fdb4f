"""Sentence embedding head: pools the hidden states of a sequence into one vector and applies dense layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.backends.torch.activations import ACTIVATIONS
from models.config.sentence import DenseConfig, SentenceConfig, VectorNormConfig
from models.layers.linear import Linear
from models.layers.pooling import output_positions, pool
from models.steps.batch import EncoderBatch


class Dense(nn.Module):
    """Linear layer with an optional activation and residual. forward: [rows, in] -> [rows, out], float32."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.linear = Linear(config.in_features, config.out_features, config.bias)
        self.activation = None if config.activation is None else ACTIVATIONS[config.activation]
        self.adds_input = config.residual
        self.residual: Linear | None = None
        if config.residual and config.in_features != config.out_features:
            self.residual = Linear(config.in_features, config.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        y = y if self.activation is None else self.activation(y)
        if not self.adds_input:
            return y
        return y + (x if self.residual is None else self.residual(x))


class VectorNorm(nn.Module):
    """LayerNorm of the vector of a text. forward: [rows, width] -> [rows, width], float32."""

    def __init__(self, config: VectorNormConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.out_features)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


class SentenceHead(nn.Module):
    """Pools hidden states in one or more ways, concatenates the vectors, and applies dense layers.

    The dense layers are float32 for every model dtype; they are small.
    """

    def __init__(self, config: SentenceConfig) -> None:
        super().__init__()
        self.config = config
        layers = (Dense(layer) if isinstance(layer, DenseConfig) else VectorNorm(layer) for layer in config.dense)
        self.dense = nn.Sequential(*layers)

    def forward(self, hidden: Tensor, batch: EncoderBatch, skipped: Sequence[int] | None = None) -> Tensor:
        """Compute one vector per sequence, before it is scaled to unit length.

        hidden: [tokens, hidden], model dtype, or [batch, hidden] where the batch has `output_positions`.
        skipped: for each sequence, number of tokens at its beginning to leave out; None to leave out no tokens.
        Returns [batch, width], float32.
        """
        pooled = torch.cat([pool(hidden, batch, mode, skipped) for mode in self.config.pooling], dim=1)
        return self.project(pooled)

    def project(self, pooled: Tensor) -> Tensor:
        """Apply the layers after the pooling, and keep the configured dimensions.

        [rows, pooled width] -> [rows, width], float32.
        """
        vectors: Tensor = self.dense(pooled)
        return vectors[:, : self.config.dimensions]

    def output_positions(self, batch: EncoderBatch, skipped: Sequence[int] | None = None) -> tuple[int, ...] | None:
        """Position of the token from which the vector of each sequence is computed; None if several tokens are used.

        skipped: for each sequence, number of tokens at its beginning to leave out; None to leave out no tokens.
        """
        modes = self.config.pooling
        return output_positions(batch, modes[0], skipped) if len(modes) == 1 else None
