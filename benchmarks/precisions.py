"""The precisions that benchmarks compare, as settings of Triptych."""

from __future__ import annotations

from server.ipc.wire.descriptions import ModelSpec

ALL_PRECISIONS = ("float32", "bfloat16", "int8", "int4")
DTYPES = ("float32", "bfloat16", "float16")
"""Precisions that are values of `--dtype`. All other precisions are values of `--quantize`."""


def model_spec(name: str, directory: str, precision: str) -> ModelSpec:
    """Describe a model for the engine. A quantised model has the dtype float32.

    name: name of the model. directory: directory of its checkpoint. precision: a value of `--dtype` or `--quantize`.
    """
    if precision in DTYPES:
        return ModelSpec(name, directory, precision)
    return ModelSpec(name, directory, "float32", precision)
