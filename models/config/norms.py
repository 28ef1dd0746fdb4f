"""Norms, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.errors import require


@dataclass(frozen=True)
class NormConfig:
    """Layer norm (Ba et al. 2016, arXiv:1607.06450) or RMS norm (Zhang and Sennrich 2019, arXiv:1910.07467).

    `rms_from_one`: an RMS norm whose checkpoints hold weights as distances from one (Gemma).
    """

    kind: Literal["layer", "rms", "rms_from_one"]
    eps: float
    bias: bool = True

    def __post_init__(self) -> None:
        require(self.eps > 0, f"norm eps must be positive, got {self.eps}")


@dataclass(frozen=True)
class NormSlots:
    """The three places of a sublayer: `y = residual_norm(x + output_norm(f(input_norm(x))))`, each optional."""

    input: NormConfig | None = None
    output: NormConfig | None = None
    residual: NormConfig | None = None


@dataclass(frozen=True)
class QueryKeyNorm:
    """A norm of queries and one of keys, after their projection and before they rotate (Henry et al. 2020,
    arXiv:2010.04245): over each head with weights that all heads share or that are its own, or over all heads together.
    """

    norm: NormConfig
    over: Literal["head", "own_head", "all"] = "head"
