"""Read the scaling of rotary positions from a GGUF file: from metadata keys, or from tensors of frequency factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weights.errors import GgufError
from weights.gguf.container import Gguf
from weights.gguf.metadata import Metadata

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Settings of all published LLaMA 3.1 to 3.3 models. Files have only the frequency divisors that follow from them."""
_TOLERANCE = 1e-4


def rope_scaling(of: Metadata) -> dict[str, Any] | None:
    """The setting `rope_scaling` from the keys `rope.scaling.*`; None without scaling, and for `longrope`.

    Raises GgufError for another type than `linear` or `yarn`.
    """
    kind = of.optional("rope.scaling.type")
    if kind in (None, "none", "longrope") or not of.number("rope.scaling.factor", 0.0):
        return None
    factor = of.number("rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        names = {
            "attention_factor": "yarn_attn_factor",
            "beta_fast": "yarn_beta_fast",
            "beta_slow": "yarn_beta_slow",
        }
        given = {ours: f"rope.scaling.{theirs}" for ours, theirs in names.items()}
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": of.integer("rope.scaling.original_context_length"),
            **{name: of.number(key) for name, key in given.items() if of.optional(key) is not None},
        }
    raise of.error("rope.scaling.type", f"is {str(kind)[:40]!r}, which is not supported, only linear and yarn")


def llama3_scaling(gguf: Gguf, theta: float, head_dim: int) -> dict[str, Any] | None:
    """The setting `rope_scaling` from the frequency divisors in the tensor `rope_freqs`; None without this tensor.

    theta: rotary base. head_dim: number of dimensions of a head that have rotary positions.
    Raises GgufError for divisors that do not follow from the settings of LLaMA 3.
    """
    if "rope_freqs.weight" not in gguf.tensors:
        return None
    divisors = gguf.floats("rope_freqs.weight")
    # A file may not state the exact factor. It is the divisor of all low frequencies.
    factor = float(f"{max(divisors):.6g}")
    expected = _llama3_divisors(theta, head_dim, factor)
    if len(divisors) != len(expected) or not all(map(_close, divisors, expected)):
        raise GgufError(f"{gguf.name!r}: the scaling of positions in 'rope_freqs.weight' is not that of LLaMA 3")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_TOLERANCE)


def _llama3_divisors(theta: float, head_dim: int, factor: float) -> Sequence[float]:
    """Divisor of each rotary frequency: 1 for short, `factor` for long, a value between for middle wavelengths.

    Source: Grattafiori et al. 2024, arXiv:2407.21783, and the published code.
    """
    low, high, original = (_LLAMA3[name] for name in _LLAMA3)
    divisors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / head_dim)
        smooth = (original / wavelength - low) / (high - low)
        smooth = min(max(smooth, 0.0), 1.0)
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def longrope(of: Metadata, original: int) -> dict[str, Any] | None:
    """The setting `rope_scaling` from the tensors `rope_factors_long` and `rope_factors_short`; None without both.

    original: longest text in tokens before scaling.
    Raises GgufError if only one of the two tensors exists.
    """
    names = [f"rope_factors_{which}.weight" for which in ("short", "long")]
    if not any(map(of.has, names)):
        return None
    missing = [name for name in names if not of.has(name)]
    if missing:
        raise GgufError(f"{of.gguf.name!r} has no tensor {missing[0]!r}")
    short, long = (list(of.gguf.floats(name)) for name in names)
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
        "attention_factor": of.number("rope.scaling.attn_factor", 1.0),
    }
