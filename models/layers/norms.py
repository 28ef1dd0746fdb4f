"""Normalisation layers, and the three norm slots of a sublayer."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from models.backends.choice import backend
from models.config import NormConfig, NormSlots
from models.layers.linear import parameter


class LayerNorm(nn.Module):
    """Layer normalisation.

    weight, bias: [hidden], model dtype; the bias is optional.
    forward: [..., hidden] -> [..., hidden], any float dtype.
    Source: Ba et al. 2016, arXiv:1607.06450.
    """

    def __init__(self, size: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = parameter(size)
        self.bias = parameter(size) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return backend(x).layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The sum `x + y` and its norm, all [tokens, hidden]."""
        return backend(x).add_layer_norm(x, y, self.weight, self.bias, self.eps)


class LayerNormFromOne(nn.Module):
    """Layer normalisation that multiplies by `1 + weight`, without a bias. The whole norm is computed in float32.

    `1 + weight` is not stored in the model dtype, because half precision would round it.

    weight: [hidden], model dtype.
    forward: [..., hidden] -> [..., hidden], any float dtype.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = parameter(size)

    def forward(self, x: Tensor) -> Tensor:
        normed = nn.functional.layer_norm(x.float(), self.weight.shape, eps=self.eps)
        return (normed * (1 + self.weight.float())).to(x.dtype)

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The sum `x + y` and its norm, all [tokens, hidden]."""
        total = x + y
        return total, self(total)


class UnscaledLayerNorm(nn.Module):
    """Layer normalisation without weight and bias.

    forward: [..., hidden] -> [..., hidden], any float dtype.
    Source: Groeneveld et al. 2024, arXiv:2402.00838, section 2.1.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.size, self.eps = size, eps

    def forward(self, x: Tensor) -> Tensor:
        return backend(x).layer_norm(x, ones_like(x, self.size), None, self.eps)

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The sum `x + y` and its norm, all [tokens, hidden]."""
        return backend(x).add_layer_norm(x, y, ones_like(x, self.size), None, self.eps)


@cache
def _ones(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(size, dtype=dtype, device=device)


def ones_like(x: Tensor, size: int) -> Tensor:
    """Ones in place of the weight that a norm does not have: [size], with the dtype and device of x."""
    return _ones(size, x.dtype, torch.device("cpu") if x.is_cpu else x.device)


class Affine(nn.Module):
    """A multiplication and an addition that take the place of a norm: `x * weight + bias`.

    weight, bias: [hidden], model dtype.
    forward: [..., hidden] -> [..., hidden], any float dtype.
    Source: Sun et al. 2020, arXiv:2004.02984, section 3.3.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = parameter(size)
        self.bias = parameter(size)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The sum `x + y`, and `(x + y) * weight + bias`, all [tokens, hidden]."""
        total = x + y
        return total, self(total)


class RMSNorm(nn.Module):
    """Root mean square normalisation. The mean square is computed in float32 for every dtype.

    weight: [hidden], model dtype.
    forward: [..., hidden] -> [..., hidden], any float dtype.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = parameter(size)

    def forward(self, x: Tensor) -> Tensor:
        return backend(x).rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The sum `x + y` and its norm, all [tokens, hidden]."""
        return backend(x).add_rms_norm(x, y, self.weight, self.eps)


class UnscaledRMSNorm(nn.Module):
    """RMS norm without weight.

    forward: [..., hidden] -> [..., hidden], any float dtype.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.size, self.eps = size, eps

    def forward(self, x: Tensor) -> Tensor:
        return backend(x).rms_norm(x, ones_like(x, self.size), self.eps)

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The sum `x + y` and its norm, all [tokens, hidden]."""
        return backend(x).add_rms_norm(x, y, ones_like(x, self.size), self.eps)


class RMSNormFromOne(RMSNorm):
    """RMS norm that multiplies by `1 + weight`. The whole norm is computed in float32.

    `1 + weight` is not stored in the model dtype, because half precision would round it.

    forward: [..., hidden] -> [..., hidden], any float dtype.
    Source: Gemma Team 2024, arXiv:2403.08295, and its published code.
    """

    def forward(self, x: Tensor) -> Tensor:
        return backend(x).rms_norm_from_one(x, self.weight, self.eps)

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return backend(x).add_rms_norm_from_one(x, y, self.weight, self.eps)


class PerHeadNorm(nn.Module):
    """One norm per attention head, each with its own weight (StableLM 2, for queries and keys).

    forward: [tokens, heads, head_dim] -> [tokens, heads, head_dim].
    """

    def __init__(self, config: NormConfig, heads: int, head_dim: int) -> None:
        super().__init__()
        norms = [make_norm(config, head_dim) for _ in range(heads)]
        self.heads = nn.ModuleList(norm for norm in norms if norm is not None)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([norm(head) for norm, head in zip(self.heads, x.unbind(1), strict=True)], dim=1)


Norm = Affine | LayerNorm | LayerNormFromOne | UnscaledLayerNorm | RMSNorm | UnscaledRMSNorm


def make_norm(config: NormConfig | None, size: int) -> Norm | None:
    """Build the norm of a configuration; None without a configuration. size: width of the normalised dimension."""
    if config is None:
        return None
    match config.kind:
        case "affine":
            return Affine(size)
        case "layer":
            return LayerNorm(size, config.eps, config.bias)
        case "layer_from_one":
            return LayerNormFromOne(size, config.eps)
        case "layer_unscaled":
            return UnscaledLayerNorm(size, config.eps)
        case "rms":
            return RMSNorm(size, config.eps)
        case "rms_from_one":
            return RMSNormFromOne(size, config.eps)
        case "rms_unscaled":
            return UnscaledRMSNorm(size, config.eps)


class SublayerNorms(nn.Module):
    """The norm slots of a sublayer `f` and the factor of its result: `residual(x + scale * output(f(input(x))))`.

    An empty slot is the identity.
    """

    def __init__(self, config: NormSlots, size: int) -> None:
        super().__init__()
        self.input = make_norm(config.input, size)
        self.output = make_norm(config.output, size)
        self.residual = make_norm(config.residual, size)
        self.scale = config.scale

    def norm_input(self, x: Tensor) -> Tensor:
        """Apply the input norm, if there is one: [tokens, hidden] -> [tokens, hidden]."""
        return x if self.input is None else self.input(x)

    def add_residual(self, x: Tensor, result: Tensor) -> Tensor:
        """Add the result of the sublayer to the residual stream.

        x: [tokens, hidden], the input of the sublayer.
        result: [tokens, hidden], the output of the sublayer.
        Returns [tokens, hidden].
        """
        y = self._scaled(result)
        return x + y if self.residual is None else self.residual.add(x, y)[1]

    def add_residual_and_norm(self, x: Tensor, result: Tensor, following: SublayerNorms) -> tuple[Tensor, Tensor]:
        """Add the result of the sublayer to the residual stream, and normalise the input of the following sublayer.

        x: [tokens, hidden], the input of the sublayer. result: [tokens, hidden], the output of the sublayer.
        following: norms of the following sublayer.
        Returns (residual stream, input of the following sublayer), both [tokens, hidden].
        """
        if self.residual is not None or following.input is None:
            x = self.add_residual(x, result)
            return x, following.norm_input(x)
        return following.input.add(x, self._scaled(result))

    def _scaled(self, result: Tensor) -> Tensor:
        """Apply the output norm and the factor to the result of the sublayer."""
        y: Tensor = result if self.output is None else self.output(result)
        return y if self.scale == 1.0 else y * self.scale
