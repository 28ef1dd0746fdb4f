"""The position-wise feed-forward sublayer and its activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.config import Activation, FeedForwardConfig
from models.linear import Linear


def _gelu_quick(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_quick": _gelu_quick,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class FeedForward(nn.Module):
    """`down(act(up(x)))`, gated `down(act(gate(x)) * up(x))` (Shazeer 2020, arXiv:2002.05202).

    forward: [tokens, hidden] -> [tokens, hidden], model dtype.
    """

    def __init__(self, config: FeedForwardConfig, hidden_size: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.gate = Linear(hidden_size, config.intermediate_size, config.bias) if config.gated else None
        self.up = Linear(hidden_size, config.intermediate_size, config.bias)
        self.down = Linear(config.intermediate_size, hidden_size, config.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            inner: Tensor = self.activation(self.up(x))
        else:
            inner = self.activation(self.gate(x)) * self.up(x)
        output: Tensor = self.down(inner)
        return output
