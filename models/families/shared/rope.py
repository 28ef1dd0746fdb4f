"""Read the rotary positions from `config.json`: base, part of each head that has them, and scaling for long texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

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
from models.families.shared.fields import MAX_INTEGER, Fields, rope_type


def rope_config(
    fields: Fields,
    head_dim: int,
    default_theta: float | None = None,
    default_share: float | None = None,
    *,
    restarts: bool = False,
    pairing: Literal["half", "interleaved"] = "half",
) -> RopeConfig:
    """Read `rope_theta` and `rope_scaling`, or `rope_parameters`, with which transformers 5 replaces both.

    head_dim: width of a head, or of the part of it that has rotary positions.
    default_theta: base if the file has none; None where `fields` has a default for `rope_theta`.
    default_share: share of each head that has rotary positions if `partial_rotary_factor` is absent. None for a family
        in which it is always the whole head; another value of the setting is then refused.
    restarts: for `longrope` scaling: whether a text that grows beyond the original length is computed again.
    pairing: whether dimension `i` rotates with `i + dim / 2` (`half`) or with its neighbour (`interleaved`).
    Raises ConfigError for settings of the wrong form or range.
    """
    where = "rope_scaling" if fields.raw("rope_scaling") else "rope_parameters"
    settings = fields.raw(where) or {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{where!r} must be an object")
    if any(isinstance(value, dict) for value in settings.values()):
        raise ConfigError(f"{where!r}: different positions for each type of layer are not supported")
    inner = Fields({"rope_theta": fields.raw("rope_theta"), **settings})
    theta = inner.number("rope_theta", default_theta)
    if rope_type(where, settings) == "proportional":
        return _proportional(fields, inner, theta, head_dim, pairing)
    if default_share is None:
        fields.refuse_unless("partial_rotary_factor", 1, 1.0)
        inner.refuse_unless("partial_rotary_factor", 1, 1.0)
    else:
        share = inner.number("partial_rotary_factor", fields.number("partial_rotary_factor", default_share))
        if not 0 < share <= 1:
            raise ConfigError(f"'partial_rotary_factor' must be above 0 and at most 1, not {share}")
        head_dim = int(head_dim * share)
    scaling = _scaling(rope_type(where, settings), fields, inner, head_dim, restarts)
    return RopeConfig(theta, head_dim, pairing, scaling)


def _proportional(
    fields: Fields, inner: Fields, theta: float, head_dim: int, pairing: Literal["half", "interleaved"]
) -> RopeConfig:
    """Rotary positions that rotate only a share of a head's dimension pairs: the pairs with the shortest wavelengths.

    The pairs have the wavelengths that they would have if all pairs of the head rotated. Source: Gemma 4.
    """
    share = inner.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    pairs, factor = int(share * head_dim // 2), inner.positive("factor", 1.0)
    if not 0 < pairs <= head_dim // 2:
        raise ConfigError(f"'partial_rotary_factor' must be above 0 and at most 1, not {share}")
    scaling = None if factor == 1.0 else LinearScaling(factor)
    return RopeConfig(theta, head_dim, pairing, scaling, None if pairs == head_dim // 2 else pairs)


def with_rope_of(hf: Mapping[str, Any], layer_type: str, default_theta: float) -> dict[str, Any]:
    """Copy the contents of `config.json` with the rotary settings of one layer type, for `rope_config`.

    transformers 5 writes `rope_parameters` per layer type. In older files `rope_scaling` is for full attention only.

    layer_type: `full_attention` or `sliding_attention`.
    default_theta: base of these layers if `rope_parameters` does not state it.
    Raises ConfigError for `rope_parameters` of another form.
    """
    by_type = hf.get("rope_parameters") or {}
    own = by_type.get(layer_type) or {} if isinstance(by_type, dict) else None
    if not isinstance(own, dict) or set(by_type) - {"full_attention", "sliding_attention"}:
        raise ConfigError("'rope_parameters' must have an object for full_attention and one for sliding_attention")
    older = hf.get("rope_scaling") if layer_type == "full_attention" else None
    return {**hf, "rope_theta": default_theta, "rope_scaling": older, "rope_parameters": own}


def scaled_max_positions(rope: RopeConfig, unscaled: int) -> int:
    """Longest text in tokens: `unscaled`, multiplied by the factor if the scaling is dynamic.

    unscaled: value of `max_position_embeddings`.
    """
    if isinstance(rope.scaling, DynamicScaling):
        return min(max(unscaled, int(rope.scaling.factor * unscaled)), MAX_INTEGER)
    return unscaled


def _scaling(kind: str, fields: Fields, inner: Fields, dim: int, restarts: bool) -> Scaling | None:
    """Configuration of the scaling, None for the type `default`.

    kind: one of `ROPE_TYPES`.
    fields: settings of the whole `config.json`. inner: the rotary settings in it.
    dim: number of dimensions of a head that have rotary positions.
    restarts: for `longrope`: whether a text that grows beyond the original length is computed again.
    """
    match kind:
        case "linear":
            return LinearScaling(inner.positive("factor"))
        case "dynamic":
            return DynamicScaling(inner.positive("factor"), fields.integer("max_position_embeddings"))
        case "llama3":
            return Llama3Scaling(
                factor=inner.positive("factor"),
                low_freq_factor=inner.positive("low_freq_factor"),
                high_freq_factor=inner.positive("high_freq_factor"),
                original_max_positions=inner.integer("original_max_position_embeddings"),
            )
        case "yarn":
            return _yarn(fields, inner)
        case "longrope":
            return _longrope(fields, inner, dim, restarts)
    return None


def _original_positions(fields: Fields, inner: Fields) -> int:
    """Longest text in tokens for which positions are not scaled.

    It is `original_max_position_embeddings`, in the file or among the rotary settings, else `max_position_embeddings`.
    Raises ConfigError for a value below 2.
    """
    name = "original_max_position_embeddings"
    original = (
        fields.optional_integer(name) or inner.optional_integer(name) or fields.integer("max_position_embeddings")
    )
    if original < 2:
        raise ConfigError(f"{name!r} must be at least 2, not {original}")
    return original


def _yarn(fields: Fields, inner: Fields) -> YarnScaling:
    original = _original_positions(fields, inner)
    factor = inner.optional_positive("factor") or fields.integer("max_position_embeddings") / original
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
    """Factor of cosines and sines in YaRN (Peng et al. 2023, arXiv:2309.00071, equation 22): 1 for a `factor` up to 1.

    weight: multiplies the logarithm of `factor`, as in the published code of DeepSeek; 1 in the paper.
    """
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(fields: Fields, inner: Fields, dim: int, restarts: bool) -> LongScaling:
    original = _original_positions(fields, inner)
    factor = inner.optional_positive("factor") or fields.integer("max_position_embeddings") / original
    magnitude = inner.optional_positive("attention_factor")
    if magnitude is None:
        magnitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    short, long = (_factors(inner.raw(name), name, dim) for name in ("short_factor", "long_factor"))
    return LongScaling(short, long, original, magnitude, restarts)


def _factors(value: Any, name: str, dim: int) -> tuple[float, ...]:
    numbers = value if isinstance(value, list) else []
    good = all(
        isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf for number in numbers
    )
    if len(numbers) != dim // 2 or not good:
        raise ConfigError(f"{name!r} must be a list of {dim // 2} numbers above zero")
    return tuple(float(number) for number in numbers)
