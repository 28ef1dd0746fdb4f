"""Normalisation layers, and the three places of a sublayer where one may stand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.backends import interface as ops
from models.config import NormConfig, NormSlots
from models.layers.linear import parameter


class LayerNorm(nn.Module):
    """Ba et al. 2016, arXiv:1607.06450. forward: [..., hidden] -> [..., hidden], any float dtype."""

    def __init__(self, size: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = parameter(size)
        self.bias = parameter(size) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """Zhang and Sennrich 2019, arXiv:1910.07467; the mean square is taken in float32, whatever the dtype.

    forward: [..., hidden] -> [..., hidden].
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = parameter(size)

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)


class RMSNormFromOne(RMSNorm):
    """RMS norm whose weight is one plus what is stored. The sum is not made at load, because half precision would round
    it, and the whole norm is computed in float32 (Gemma Team 2024, arXiv:2403.08295, by its published code).

    forward: [..., hidden] -> [..., hidden].
    """

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm_from_one(x, self.weight, self.eps)


class NormOfHeads(nn.Module):
    """A norm with weights of its own for each head, as StableLM 2 has for queries and keys.

    forward: [tokens, heads, head_dim] -> [tokens, heads, head_dim].
    """

    def __init__(self, config: NormConfig, heads: int, head_dim: int) -> None:
        super().__init__()
        norms = [make_norm(config, head_dim) for _ in range(heads)]
        self.heads = nn.ModuleList(norm for norm in norms if norm is not None)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([norm(part) for norm, part in zip(self.heads, x.unbind(1), strict=True)], dim=1)


def make_norm(config: NormConfig | None, size: int) -> LayerNorm | RMSNorm | None:
    """The norm that a configuration asks for, or None."""
    if config is None:
        return None
    match config.kind:
        case "layer":
            return LayerNorm(size, config.eps, config.bias)
        case "rms":
            return RMSNorm(size, config.eps)
        case "rms_from_one":
            return RMSNormFromOne(size, config.eps)


class SublayerNorms(nn.Module):
    """The three slots around a sublayer `f`: `residual(x + output(f(input(x))))`; an empty slot changes nothing."""

    def __init__(self, config: NormSlots, size: int) -> None:
        super().__init__()
        self.input = make_norm(config.input, size)
        self.output = make_norm(config.output, size)
        self.residual = make_norm(config.residual, size)

    def before(self, x: Tensor) -> Tensor:
        """What the sublayer is given. [tokens, hidden] -> [tokens, hidden]."""
        return x if self.input is None else self.input(x)

    def after(self, x: Tensor, result: Tensor) -> Tensor:
        """Join the sublayer's result to the residual stream. [tokens, hidden], [tokens, hidden] -> [tokens, hidden]."""
        x = x + (result if self.output is None else self.output(result))
        return x if self.residual is None else self.residual(x)
