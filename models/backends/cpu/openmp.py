"""Give the compiled kernels the OpenMP runtime of torch, so that both use one pool of threads.

A wheel of torch contains an OpenMP runtime, under the name `libgomp.so.1` or a name with a hash. The kernels therefore
name no runtime: they refer to its functions only, which the loader finds among the global symbols of the process.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch


class _SymbolInfo(ctypes.Structure):
    """The C struct `Dl_info` of dlfcn.h, which `dladdr` fills with facts about a function."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def runtime_of_torch() -> Path:
    """Path of the OpenMP runtime that torch has loaded. Raises OSError if torch was built without one."""
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
    """Make the functions of torch's OpenMP runtime global symbols. Must be called before the kernels are loaded.

    Raises OSError if torch has no such runtime.
    """
    ctypes.CDLL(str(runtime_of_torch()), mode=os.RTLD_GLOBAL | os.RTLD_NOLOAD)
