"""The compiled kernels, if the installation built them: plain C functions, called through ctypes.

Built by `setup.py` from `models/ops/native`. They use the OpenMP runtime that torch has already loaded, and so its
threads; that is why torch is imported first.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

__all__ = ["Finish", "FloatLinearTask", "Int8LinearTask", "PagedAttentionTask", "choose_generation", "load", "torch"]

_POINTER, _INT64, _INT32, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class PagedAttentionTask(ctypes.Structure):
    """`struct PagedAttention` of `native/paged_attention.cpp`, field by field."""

    _fields_ = (
        ("query", _POINTER),
        ("query_stride", _INT64),
        ("key_cache", _POINTER),
        ("value_cache", _POINTER),
        ("tables", _POINTER),
        ("table_width", _INT64),
        ("rows", _POINTER),
        ("starts", _POINTER),
        ("ends", _POINTER),
        ("positions", _POINTER),
        ("bias", _POINTER),
        ("bias_length", _INT64),
        ("out", _POINTER),
        ("queries", _INT64),
        ("heads", _INT64),
        ("kv_heads", _INT64),
        ("head_dim", _INT64),
        ("block_size", _INT64),
        ("scale", _FLOAT),
        ("cap", _FLOAT),
    )


class Finish(ctypes.Structure):
    """`struct Finish` of `native/kernels.h`, field by field."""

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
    """`struct FloatLinear` of `native/kernels.h`, field by field."""

    _fields_ = (
        ("x", _POINTER),
        ("stride", _INT64),
        ("rows", _INT64),
        ("width", _INT64),
        ("blocks", _INT64),
        ("weight", _POINTER),
        ("finish", Finish),
        ("packed", _INT32),
    )


class Int8LinearTask(ctypes.Structure):
    """`struct Int8Linear` of `native/kernels.h`, field by field."""

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


_SIGNATURES = {
    "triptych_rms_norm": [_INT32, _POINTER, _INT64, _POINTER, _POINTER, _INT64, _INT64, _FLOAT],
    "triptych_rotate": [_INT32, _POINTER, _INT64, *[_POINTER] * 3, *[_INT64] * 4, _INT32],
    "triptych_write_slots": [_POINTER, _INT64, _POINTER, _INT64, *[_POINTER] * 3, _INT64, _INT64],
    "triptych_paged_attention": [_INT32, ctypes.POINTER(PagedAttentionTask)],
    "triptych_int8_pack": [_POINTER, _INT64, _INT64, _POINTER, _POINTER],
    "triptych_int8_linear": [_INT32, _POINTER, _INT64, _INT64, ctypes.POINTER(Int8LinearTask)],
    "triptych_float_pack": [_INT32, _POINTER, _INT64, _INT64, _POINTER],
    "triptych_float_unpack": [_INT32, _POINTER, _INT64, _INT64, _POINTER, _INT64, _POINTER],
    "triptych_float_linear": [_INT32, ctypes.POINTER(FloatLinearTask)],
}


@cache
def load() -> ctypes.CDLL | None:
    """The library, or None where it was not built for this Python and processor, or cannot be loaded."""
    for path in sorted(Path(__file__).parent.glob("_native*.so")):
        try:
            library = ctypes.CDLL(str(path))
            for name, types in _SIGNATURES.items():
                function = getattr(library, name)
                function.argtypes, function.restype = types, None
            library.triptych_float_unpack.restype = ctypes.c_int32
            library.triptych_choose_generation.argtypes = [ctypes.c_char_p]
        except (OSError, AttributeError):
            continue
        return library
    return None


def choose_generation(name: str) -> bool:
    """Compute with the kernels of one generation of processors (`native/exports.cpp`) from now on: for tests. False if
    there are none of that name that this processor runs."""
    library = load()
    return library is not None and bool(library.triptych_choose_generation(name.encode()))
