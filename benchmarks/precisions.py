"""The precisions that benchmarks compare, as settings of Triptych."""

from __future__ import annotations

from server.ipc.wire.descriptions import ModelSpec

ALL_PRECISIONS = ("float32", "bfloat16", "int8", "int4")
QUANTIZATIONS = ("int8", "int4")
"""Precisions that are values of `--quantize`. The others are dtypes."""


def model_spec(name: str, directory: str, precision: str) -> ModelSpec:
    """A model for the engine. The dtype of a quantised one is float32.

    name: name of the model. directory: directory of its checkpoint. precision: one of `ALL_PRECISIONS`.
    """
    if precision in QUANTIZATIONS:
        return ModelSpec(name, directory, "float32", precision)
    return ModelSpec(name, directory, precision)
