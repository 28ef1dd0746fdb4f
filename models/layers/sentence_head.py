"""One vector of a text as its checkpoint makes it: pooled, joined, and through dense layers where there are some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from models.batch import EncoderBatch
from models.config.sentence import DenseConfig, SentenceConfig
from models.layers.activations import ACTIVATIONS
from models.layers.linear import Linear
from models.layers.pooling import output_positions, pool
from weights.load import WeightsError, load_weights
from weights.rules import Rename


class Dense(nn.Module):
    """forward: [batch, in_features] -> [batch, out_features], float32 both."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.linear = Linear(config.in_features, config.out_features, config.bias)
        self.activation = None if config.activation is None else ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return x if self.activation is None else self.activation(x)


class SentenceHead(nn.Module):
    """skipped: tokens at the beginning of each text that do not count. Dense layers stay float32, being small.

    forward: what `encode` makes of the batch, model dtype -> [batch, width], float32; not yet of unit length.
    """

    def __init__(self, config: SentenceConfig) -> None:
        super().__init__()
        self.config = config
        self.dense = nn.Sequential(*(Dense(layer) for layer in config.dense))

    def forward(self, hidden: Tensor, batch: EncoderBatch, skipped: Sequence[int] | None = None) -> Tensor:
        pooled = torch.cat([pool(hidden, batch, mode, skipped) for mode in self.config.pooling], dim=1)
        vectors: Tensor = self.dense(pooled)
        return vectors

    def output_positions(self, batch: EncoderBatch, skipped: Sequence[int] | None = None) -> tuple[int, ...] | None:
        """Of the one token of each text that its vector is made of; None where it is made of more."""
        modes = self.config.pooling
        return output_positions(batch, modes[0], skipped) if len(modes) == 1 else None


def load_sentence_head(directory: Path, config: SentenceConfig, device: torch.device) -> SentenceHead:
    """Raises WeightsError for dense layers whose weights are not there, or not theirs."""
    with torch.device("meta"):
        head = SentenceHead(config)
    for layer, module in zip(config.dense, head.dense, strict=True):
        shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}

        def assign(name: str, tensor: Tensor, module: nn.Module = module) -> None:
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, nn.Parameter(tensor, requires_grad=False))

        rules = (Rename(r"linear\.(weight|bias)", r"linear.\1"),)
        try:
            load_weights(directory, rules, shapes, torch.float32, device, assign, folder=layer.folder)
        except WeightsError as error:
            raise WeightsError(f"{layer.folder}: {error}") from None
    return head.eval()
