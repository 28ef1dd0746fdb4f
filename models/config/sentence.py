"""Configuration of sentence embeddings, as in sentence-transformers (Reimers and Gurevych 2019, arXiv:1908.10084)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.layers import Activation

Pooling = Literal["mean", "cls", "last", "max", "mean_sqrt", "weighted_mean"]


@dataclass(frozen=True)
class DenseConfig:
    """A linear layer on the vector of a text, and an optional activation: `activation(W x + b)`.

    folder: folder of its weights inside the checkpoint directory.
    """

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: Activation | None


@dataclass(frozen=True)
class SentenceConfig:
    """How the hidden states of a text become one vector.

    pooling: pooling methods; their vectors are concatenated in this order.
    include_prompt: whether the pooling includes the tokens of a prompt.
    dense: linear layers after the pooling.
    normalize: scale the result to unit length.
    max_tokens: longest text, None for no limit.
    """

    pooling: tuple[Pooling, ...] = ("mean",)
    include_prompt: bool = True
    dense: tuple[DenseConfig, ...] = ()
    normalize: bool = True
    max_tokens: int | None = None

    def width(self, hidden_size: int) -> int:
        """Number of values in the vector."""
        return self.dense[-1].out_features if self.dense else len(self.pooling) * hidden_size
