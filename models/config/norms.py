"""Configuration of norms and of their places in a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.errors import require


@dataclass(frozen=True)
class NormConfig:
    """Layer norm (Ba et al. 2016, arXiv:1607.06450) or RMS norm (Zhang and Sennrich 2019, arXiv:1910.07467).

    kind: `layer` or `rms`, or one of these variants. `affine` multiplies by a weight and adds a bias, without mean,
        variance and `eps` (MobileBERT). `rms_from_one` is an RMS norm that multiplies by one plus its weight (Gemma).
        `layer_from_one` is a layer norm that multiplies by one plus its weight and has no bias (streaming Moonshine).
        `layer_unscaled` is a layer norm without weight and bias (OLMo), `rms_unscaled` an RMS norm without weight.
    """

    kind: Literal["affine", "layer", "layer_from_one", "layer_unscaled", "rms", "rms_from_one", "rms_unscaled"]
    eps: float
    bias: bool = True

    def __post_init__(self) -> None:
        require(0 < self.eps <= 1, f"norm eps must be above 0 and at most 1, got {self.eps}")


@dataclass(frozen=True)
class NormSlots:
    """The three optional norms of a sublayer `f`, and the factor `scale` of its result.

    `y = residual_norm(x + scale * output_norm(f(input_norm(x))))`
    """

    input: NormConfig | None = None
    output: NormConfig | None = None
    residual: NormConfig | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class QueryKeyNorm:
    """Norms of queries and keys (Henry et al. 2020, arXiv:2010.04245).

    over: dimensions of one normalisation. `head`: one head, with weights that all heads share. `own_head`: one head,
        with separate weights per head. `all`: all heads together.
    after_rotation: whether the norms follow the rotation of queries and keys, instead of preceding it.
    """

    norm: NormConfig
    over: Literal["head", "own_head", "all"] = "head"
    after_rotation: bool = False

    def __post_init__(self) -> None:
        require(self.over != "all" or not self.after_rotation, "a norm after the rotation is over single heads")
