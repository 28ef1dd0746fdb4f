"""Decides whether the Triton kernels are used for a device or tensor, and imports their operations when needed.

Importing this file does not import triton.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

MIN_CAPABILITY = (8, 0)
"""Lowest compute capability that the kernels support (Ampere). The tests compile the kernels for it."""
_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})


@cache
def operations() -> ModuleType:
    """The module `models.backends.cuda.operations`. Imports triton, which takes a second."""
    return importlib.import_module("models.backends.cuda.operations")


def takes(x: Tensor) -> bool:
    """Whether the kernels support the device and the dtype of `x`."""
    return x.is_cuda and x.dtype in _DTYPES and runs_on(x.device)


@cache
def runs_on(device: torch.device) -> bool:
    """Whether the kernels run on a device."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
