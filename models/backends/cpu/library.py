"""Load the compiled kernels, which are plain C functions called through ctypes.

`setup.py` builds them from `models/backends/cpu/kernels`. They share the OpenMP runtime and the threads of torch
(`models.backends.cpu.openmp`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import cast

import torch

from models.backends.cpu import header
from models.backends.cpu.header import interface_hash
from models.backends.cpu.openmp import share_runtime_of_torch
from models.config import Activation

__all__ = [
    "ACTIVATION_CODES",
    "DTYPE_CODES",
    "OPERATIONS",
    "ROUTER_SCORE_CODES",
    "StaleKernels",
    "choose_isa",
    "interface_hash",
    "is_amx_refused",
    "load",
    "loaded",
    "open_library",
    "torch",
]

_TEXT = header.PATH.read_text()

OPERATIONS = header.read_operations(_TEXT)
"""Operations of the library by name."""

DTYPE_CODES: Mapping[torch.dtype, int] = {
    getattr(torch, name.lower()): code for name, code in header.read_codes(_TEXT, "DType").items()
}
"""Codes of the dtypes that the kernels compute in."""

ACTIVATION_CODES: Mapping[Activation | None, int] = {
    None if name == "NONE" else cast(Activation, name.lower()): code
    for name, code in header.read_codes(_TEXT, "Activation").items()
}
"""Codes of the activations that a product can apply; None for no activation."""

ROUTER_SCORE_CODES: Mapping[str, int] = {
    name.lower().removesuffix("_score"): code for name, code in header.read_codes(_TEXT, "RouterScore").items()
}
"""Code of each value of `RouterConfig.score`, the function that turns the logits of a router into scores."""

_POINTER, _INT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32

_SIGNATURES = {
    "triptych_run_operation": [_INT64, _INT32, _POINTER],
    "triptych_run_program": [_POINTER, _INT64, _POINTER],
    "triptych_struct_bytes": [_INT64],
    "triptych_copy_blocks": [_POINTER, _POINTER, _INT64, _INT64, _POINTER, _INT64],
    "triptych_pack_int8": [_POINTER, _INT64, _INT64, _POINTER, _POINTER],
    "triptych_pack_floats": [_INT32, _POINTER, _INT64, _INT64, _POINTER],
    "triptych_search_two_levels": [_POINTER, _INT64, _POINTER, _POINTER],
    "triptych_search_six_bits": [_POINTER, _INT64, _POINTER],
    "triptych_round_groups": [_POINTER, _INT64, _POINTER, _POINTER, ctypes.c_float, ctypes.c_float, _POINTER],
    "triptych_choose_isa": [ctypes.c_char_p],
    "triptych_is_amx_refused": [],
}


class StaleKernels(RuntimeError):
    """The library was built from another `kernels.h` than the one that Python reads."""


@cache
def load() -> ctypes.CDLL | None:
    """The library of compiled kernels; None if there is no library file that this machine can load.

    Raises StaleKernels for a library of another version.
    """
    for path in sorted(Path(__file__).parent.glob("_kernels*.so")):
        try:
            return open_library(path)
        except OSError:
            continue
    return None


def open_library(path: Path) -> ctypes.CDLL:
    """Load one library file and check its version.

    Raises OSError if the file cannot be loaded, and StaleKernels if it was built from another `kernels.h`.
    """
    share_runtime_of_torch()
    library = ctypes.CDLL(str(path))
    try:
        library.triptych_interface_hash.restype = ctypes.c_char_p
        found = library.triptych_interface_hash().decode()
    except AttributeError:
        found = "none"
    if found != interface_hash():
        raise StaleKernels(
            "the compiled kernels are of another version of Triptych; install it again: pip install -e ."
        )
    for name, types in _SIGNATURES.items():
        getattr(library, name).argtypes = types
    library.triptych_struct_bytes.restype = _INT64
    return library


def loaded() -> ctypes.CDLL:
    """The library of compiled kernels. The caller has checked that `load` does not return None."""
    library = load()
    assert library is not None
    return library


def choose_isa(name: str) -> bool:
    """Select the kernels of one instruction set (`kernels/exports.cpp`) for all later operations. Used by tests.

    Returns False where the library has no such kernels or the processor cannot run them.
    """
    library = load()
    return library is not None and bool(library.triptych_choose_isa(name.encode()))


def is_amx_refused() -> bool:
    """Whether the processor has a matrix unit (AMX) that the system does not let this process use."""
    library = load()
    return library is not None and bool(library.triptych_is_amx_refused())
