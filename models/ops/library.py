"""The compiled kernels, if the installation built them: plain C functions, called through ctypes.

Built by `setup.py` from `models/ops/native`. They use the OpenMP runtime that torch has already loaded, and so its
threads; that is why torch is imported first.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

__all__ = ["DrawTask", "PagedAttentionTask", "SurveyTask", "load", "torch"]

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


class SurveyTask(ctypes.Structure):
    """`struct Survey` of `native/kernels.h`, field by field."""

    _fields_ = (
        ("logits", _POINTER),
        ("stride", _INT64),
        ("width", _INT64),
        ("count", _INT64),
        ("values", _POINTER),
        ("ids", _POINTER),
        ("log_sums", _POINTER),
        ("finite", _POINTER),
    )


class DrawTask(ctypes.Structure):
    """`struct Draw` of `native/kernels.h`, field by field."""

    _fields_ = (
        ("logits", _POINTER),
        ("stride", _INT64),
        ("width", _INT64),
        ("temperatures", _POINTER),
        ("top_ks", _POINTER),
        ("top_ps", _POINTER),
        ("log_min_ps", _POINTER),
        ("uniforms", _POINTER),
        ("tokens", _POINTER),
        ("lowest", _POINTER),
    )


_SIGNATURES = {
    "triptych_rms_norm": [_INT32, _POINTER, _INT64, _POINTER, _POINTER, _INT64, _INT64, _FLOAT],
    "triptych_rotate": [_INT32, _POINTER, _INT64, *[_POINTER] * 3, *[_INT64] * 4, _INT32],
    "triptych_write_slots": [_POINTER, _INT64, _POINTER, _INT64, *[_POINTER] * 3, _INT64, _INT64],
    "triptych_copy_blocks": [_POINTER, _POINTER, _INT64, _INT64, _POINTER, _INT64],
    "triptych_paged_attention": [_INT32, ctypes.POINTER(PagedAttentionTask)],
    "triptych_survey": [ctypes.POINTER(SurveyTask), _INT64],
    "triptych_draw": [ctypes.POINTER(DrawTask), _INT64],
    "triptych_int8_pack": [_POINTER, _INT64, _INT64, _POINTER, _POINTER],
    "triptych_int8_linear": [_INT32, _POINTER, _INT64, *[_POINTER] * 7, *[_INT64] * 3],
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
        except (OSError, AttributeError):
            continue
        return library
    return None
