"""Give the compiled kernels the OpenMP runtime of torch, so that both use one pool of threads.

A wheel of torch brings a runtime of its own, under the name `libgomp.so.1` or one with a hash. The kernels therefore
name no runtime: they refer to its functions only, which the loader finds among the global symbols of the process.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch


class _SymbolInfo(ctypes.Structure):
    """`Dl_info` of dlfcn.h."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def runtime_of_torch() -> Path:
    """The file of the OpenMP runtime that torch has loaded. Raises OSError for a torch without one."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.so*")):
        try:
            function = ctypes.CDLL(str(library)).omp_get_max_threads
        except AttributeError:
            continue
        found = _SymbolInfo()
        if ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(found)):
            return Path(os.fsdecode(found.path))
    raise OSError("this torch has no OpenMP runtime, which the compiled kernels need")


def share_runtime_of_torch() -> None:
    """Make the functions of torch's runtime global symbols, before the kernels are loaded. Raises OSError."""
    ctypes.CDLL(str(runtime_of_torch()), mode=os.RTLD_GLOBAL | os.RTLD_NOLOAD)
