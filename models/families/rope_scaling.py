"""How rotary positions were stretched, from the settings that say so; an unknown kind is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from models.config import (
    ConfigError,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeConfig,
    Scaling,
    YarnScaling,
)

if TYPE_CHECKING:
    from models.families.fields import Fields

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def scaling_of(kind: str, top: Fields, inner: Fields, values: Mapping[str, Any], dim: int) -> Scaling | None:
    """The scaling that `kind`, one of KINDS, asks for; None where nothing changes.

    top: the whole `config.json`. inner, values: the settings of the scaling. dim: how many dimensions rotate.
    """
    match kind:
        case "linear":
            return LinearScaling(inner.positive("factor"))
        case "dynamic":
            return DynamicScaling(inner.positive("factor"), top.integer("max_position_embeddings"))
        case "llama3":
            return Llama3Scaling(
                factor=inner.positive("factor"),
                low_freq_factor=inner.positive("low_freq_factor"),
                high_freq_factor=inner.positive("high_freq_factor"),
                original_max_positions=inner.integer("original_max_position_embeddings"),
            )
        case "yarn":
            return _yarn(top, inner)
        case "longrope":
            return _long(top, inner, values, dim)
    return None


def longest_text(rope: RopeConfig, max_positions: int) -> int:
    """How long a text may be: `max_positions`; where the scaling starts from these, `factor` times as many."""
    if isinstance(rope.scaling, DynamicScaling):
        return max(max_positions, int(rope.scaling.factor * max_positions))
    return max_positions


def _original(top: Fields, inner: Fields) -> int:
    """How long the texts were before: beside the scaling (Phi-3), in it, or as long as now."""
    name = "original_max_position_embeddings"
    original = top.optional_integer(name) or inner.optional_integer(name) or top.integer("max_position_embeddings")
    if original < 2:
        raise ConfigError(f"{name!r} must be at least 2")
    return original


def _yarn(top: Fields, inner: Fields) -> YarnScaling:
    original = _original(top, inner)
    factor = inner.optional_positive("factor") or top.integer("max_position_embeddings") / original
    mscale, mscale_all = inner.optional_positive("mscale"), inner.optional_positive("mscale_all_dim")
    magnitude = inner.optional_positive("attention_factor")
    if magnitude is None and mscale and mscale_all:
        magnitude = _magnitude(factor, mscale) / _magnitude(factor, mscale_all)
    return YarnScaling(
        factor=factor,
        original_max_positions=original,
        beta_fast=inner.optional_positive("beta_fast") or 32.0,
        beta_slow=inner.optional_positive("beta_slow") or 1.0,
        truncate=inner.flag("truncate", True),
        magnitude=_magnitude(factor, 1.0) if magnitude is None else magnitude,
    )


def _magnitude(factor: float, weight: float) -> float:
    """Peng et al. 2023, arXiv:2309.00071, equation 22, as published code has it."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _long(top: Fields, inner: Fields, values: Mapping[str, Any], dim: int) -> LongScaling:
    original = _original(top, inner)
    factor = inner.optional_positive("factor") or top.integer("max_position_embeddings") / original
    magnitude = inner.optional_positive("attention_factor")
    if magnitude is None:
        magnitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    short, long = (_factors(values.get(name), name, dim) for name in ("short_factor", "long_factor"))
    return LongScaling(short, long, original, magnitude)


def _factors(value: Any, name: str, dim: int) -> tuple[float, ...]:
    numbers = value if isinstance(value, list) else []
    good = all(isinstance(one, int | float) and not isinstance(one, bool) and 0 < one < math.inf for one in numbers)
    if len(numbers) != dim // 2 or not good:
        raise ConfigError(f"{name!r} must be a list of {dim // 2} numbers above zero")
    return tuple(float(one) for one in numbers)
