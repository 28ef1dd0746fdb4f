"""The compiled kernels, if the installation built them: plain C functions, called through ctypes.

Built by `setup.py` from `models/backends/cpu/kernels`. They use the OpenMP runtime that torch has already loaded,
and so its threads; that is why torch is imported first.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from pathlib import Path

import torch

__all__ = [
    "CODES",
    "AttentionTask",
    "DrawTask",
    "Finish",
    "FloatLinearTask",
    "Int8LinearTask",
    "Kind",
    "Lookup",
    "NormTask",
    "QuantiseTask",
    "RotationTask",
    "RowChoiceTask",
    "RowSumTask",
    "ScalingTask",
    "SlotWriteTask",
    "SpanMeanTask",
    "SumTask",
    "SurveyTask",
    "choose_generation",
    "do",
    "load",
    "loaded",
    "torch",
]

_POINTER, _INT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_FLOAT, _DOUBLE = ctypes.c_float, ctypes.c_double

MOST_TABLES = 3
"""As many as one sum of rows has: tokens, positions, types."""


class Kind(IntEnum):
    """What an operation is: the enumeration of that name in `kernels/operations.h`."""

    RMS_NORM = 0
    RMS_NORM_FROM_ONE = 1
    LAYER_NORM = 2
    ROTATE = 3
    WRITE_SLOTS = 4
    ADD = 5
    ATTEND = 6
    FLOAT_LINEAR = 7
    QUANTISE = 8
    INT8_LINEAR = 9
    TAKE_ROWS = 10
    SPAN_MEAN = 11
    SURVEY = 12
    DRAW = 13
    SCALE = 14


class NormTask(ctypes.Structure):
    """`struct Norm` of `kernels/kernels.h`, field by field; so are the others."""

    _fields_ = (
        ("x", _POINTER),
        ("stride", _INT64),
        ("weight", _POINTER),
        ("bias", _POINTER),
        ("out", _POINTER),
        ("rows", _INT64),
        ("parts", _INT64),
        ("width", _INT64),
        ("eps", _DOUBLE),
    )


class RotationTask(ctypes.Structure):
    _fields_ = (
        ("x", _POINTER),
        ("stride", _INT64),
        ("cos", _POINTER),
        ("sin", _POINTER),
        ("positions", _POINTER),
        ("out", _POINTER),
        ("tokens", _INT64),
        ("heads", _INT64),
        ("head_dim", _INT64),
        ("half", _INT64),
        ("interleaved", _INT64),
    )


class SlotWriteTask(ctypes.Structure):
    _fields_ = (
        ("key", _POINTER),
        ("key_stride", _INT64),
        ("value", _POINTER),
        ("value_stride", _INT64),
        ("key_cache", _POINTER),
        ("value_cache", _POINTER),
        ("slots", _POINTER),
        ("tokens", _INT64),
        ("width", _INT64),
    )


class RowChoiceTask(ctypes.Structure):
    _fields_ = (
        ("x", _POINTER),
        ("stride", _INT64),
        ("index", _POINTER),
        ("out", _POINTER),
        ("rows", _INT64),
        ("width", _INT64),
    )


class SumTask(ctypes.Structure):
    _fields_ = (("x", _POINTER), ("y", _POINTER), ("out", _POINTER), ("rows", _INT64), ("width", _INT64))


class ScalingTask(ctypes.Structure):
    _fields_ = (("x", _POINTER), ("out", _POINTER), ("rows", _INT64), ("width", _INT64), ("factor", _DOUBLE))


class Lookup(ctypes.Structure):
    _fields_ = (("index", _POINTER), ("table", _POINTER), ("table_rows", _INT64))


class RowSumTask(ctypes.Structure):
    _fields_ = (
        ("parts", Lookup * MOST_TABLES),
        ("count", _INT64),
        ("onto", _POINTER),
        ("scale", _DOUBLE),
        ("out", _POINTER),
        ("rows", _INT64),
        ("width", _INT64),
    )


class SpanMeanTask(ctypes.Structure):
    _fields_ = (
        ("x", _POINTER),
        ("spans", _POINTER),
        ("out", _POINTER),
        ("rows", _INT64),
        ("count", _INT64),
        ("width", _INT64),
    )


class AttentionTask(ctypes.Structure):
    _fields_ = (
        ("query", _POINTER),
        ("query_stride", _INT64),
        ("keys", _POINTER),
        ("key_stride", _INT64),
        ("values", _POINTER),
        ("value_stride", _INT64),
        ("tables", _POINTER),
        ("table_width", _INT64),
        ("block_size", _INT64),
        ("rows", _POINTER),
        ("starts", _POINTER),
        ("ends", _POINTER),
        ("origins", _POINTER),
        ("tiles", _POINTER),
        ("bias", _POINTER),
        ("bias_stride", _INT64),
        ("bias_zero", _INT64),
        ("out", _POINTER),
        ("num_tiles", _INT64),
        ("heads", _INT64),
        ("kv_heads", _INT64),
        ("head_dim", _INT64),
        ("scale", _FLOAT),
        ("cap", _FLOAT),
    )


class QuantiseTask(ctypes.Structure):
    _fields_ = (
        ("x", _POINTER),
        ("stride", _INT64),
        ("out", _POINTER),
        ("scales", _POINTER),
        ("rows", _INT64),
        ("width", _INT64),
        ("padded", _INT64),
    )


class Finish(ctypes.Structure):
    _fields_ = (
        ("bias", _POINTER),
        ("times", _POINTER),
        ("times_stride", _INT64),
        ("residual", _POINTER),
        ("residual_stride", _INT64),
        ("out", _POINTER),
        ("out_stride", _INT64),
        ("columns", _INT64),
        ("activation", _INT32),
    )


class FloatLinearTask(ctypes.Structure):
    _fields_ = (
        ("x", _POINTER),
        ("stride", _INT64),
        ("rows", _INT64),
        ("width", _INT64),
        ("blocks", _INT64),
        ("weight", _POINTER),
        ("finish", Finish),
        ("packed", _INT32),
        ("writes", _INT32),
    )


class Int8LinearTask(ctypes.Structure):
    _fields_ = (
        ("x", _POINTER),
        ("row_scales", _POINTER),
        ("rows", _INT64),
        ("padded", _INT64),
        ("blocks", _INT64),
        ("weight", _POINTER),
        ("weight_scales", _POINTER),
        ("offsets", _POINTER),
        ("finish", Finish),
    )


class SurveyTask(ctypes.Structure):
    _fields_ = (
        ("logits", _POINTER),
        ("rows", _INT64),
        ("stride", _INT64),
        ("width", _INT64),
        ("count", _INT64),
        ("values", _POINTER),
        ("ids", _POINTER),
        ("log_sums", _POINTER),
        ("finite", _POINTER),
    )


class DrawTask(ctypes.Structure):
    _fields_ = (
        ("logits", _POINTER),
        ("rows", _INT64),
        ("stride", _INT64),
        ("width", _INT64),
        ("temperatures", _POINTER),
        ("top_ks", _POINTER),
        ("top_ps", _POINTER),
        ("log_min_ps", _POINTER),
        ("typical_ps", _POINTER),
        ("uniforms", _POINTER),
        ("tokens", _POINTER),
        ("lowest", _POINTER),
        ("highest", _POINTER),
    )


CODES = {torch.float32: 0, torch.bfloat16: 1}
"""The numbers of `DType` in `kernels/kernels.h`."""

_SIGNATURES = {
    "triptych_operation": [_INT64, _INT32, _POINTER],
    "triptych_copy_blocks": [_POINTER, _POINTER, _INT64, _INT64, _POINTER, _INT64],
    "triptych_row_sum": [_INT32, _POINTER],
    "triptych_int8_pack": [_POINTER, _INT64, _INT64, _POINTER, _POINTER],
    "triptych_int8_unpack": [_INT32, _POINTER, _POINTER, _INT64, _INT64, _POINTER, _INT64, _POINTER],
    "triptych_run": [_POINTER, _INT64, _POINTER],
    "triptych_float_pack": [_INT32, _POINTER, _INT64, _INT64, _POINTER],
    "triptych_float_unpack": [_INT32, _POINTER, _INT64, _INT64, _POINTER, _INT64, _POINTER],
}


@cache
def load() -> ctypes.CDLL | None:
    """The library, or None where it was not built for this Python and processor, or cannot be loaded."""
    for path in sorted(Path(__file__).parent.glob("_kernels*.so")):
        try:
            library = ctypes.CDLL(str(path))
            for name, types in _SIGNATURES.items():
                function = getattr(library, name)
                function.argtypes, function.restype = types, None
            for name in ("triptych_float_unpack", "triptych_int8_unpack", "triptych_row_sum"):
                getattr(library, name).restype = ctypes.c_int32
            library.triptych_choose_generation.argtypes = [ctypes.c_char_p]
        except (OSError, AttributeError):
            continue
        return library
    return None


def loaded() -> ctypes.CDLL:
    """The library, where it is known to be there."""
    library = load()
    assert library is not None
    return library


def do(kind: Kind, dtype: torch.dtype, task: ctypes.Structure) -> None:
    """One operation, on the threads of torch. dtype: a key of CODES. What the task points at has to live until then."""
    loaded().triptych_operation(kind, CODES[dtype], ctypes.byref(task))


def choose_generation(name: str) -> bool:
    """Compute with the kernels of one generation of processors (`kernels/exports.cpp`) from now on: for tests. False if
    there are none of that name that this processor runs."""
    library = load()
    return library is not None and bool(library.triptych_choose_generation(name.encode()))
