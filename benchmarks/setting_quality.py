"""Look up the quality of a setting of the benchmark page in the results of `make quality`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

MODEL = "smollm2-135m"
RESULTS = Path(__file__).parent.parent / "docs" / "quality" / "results.json"
SETTINGS_OF_NOW = "2026-11-28"
"""First day (ISO date) on which the names `int8` and `int4` had their present meaning, see `_BEFORE`."""

_BEFORE = {"int8": "int8-fast", "int4": "int4-128"}
_LLAMA_CPP = {"int8": "Q8_0", "int4": "Q4_0"}
_LLAMA_CPP_K = {"int4": "Q4_K_M"}
_THEIRS: Mapping[str, Mapping[str, str]] = {
    "llama.cpp": _LLAMA_CPP,
    "llama-library": _LLAMA_CPP,
    "llama.cpp-k": _LLAMA_CPP_K,
    "llama-library-k": _LLAMA_CPP_K,
}


def distances() -> Mapping[str, float]:
    """Mean KL divergence from float32 of each contestant of `benchmarks.quality`; empty without results."""
    if not RESULTS.exists():
        return {}
    rows = json.loads(RESULTS.read_text()).get(MODEL, {})
    return {name: float(row["mean_kl"]) for name, row in rows.items()}


def distance_of(contestant: str, precision: str, date: str, found: Mapping[str, float]) -> str:
    """The KL divergence for a row of the result page, as text; empty if it was not measured.

    contestant, precision: contestant and precision of the row. date: day of the benchmark (ISO date).
    found: result of `distances`.
    """
    if precision == "float32":
        return "0"
    if contestant in ("ours", "http"):
        setting: str | None = precision if date >= SETTINGS_OF_NOW else _BEFORE.get(precision, precision)
    else:
        setting = _THEIRS.get(contestant, {}).get(precision)
    return f"{found[setting]:.4f}" if setting in found else ""
