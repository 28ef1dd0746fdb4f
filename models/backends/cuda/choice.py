"""Whether the Triton kernels compute with tensors, and the module of their operations. Does not import triton."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

MIN_CAPABILITY = (8, 0)
"""Compute capability of the oldest device for which the kernels are compiled in the tests (Ampere)."""
_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})


@cache
def operations() -> ModuleType:
    """The operations of the kernels. Imports triton, which takes a second."""
    return importlib.import_module("models.backends.cuda.operations")


def takes(x: Tensor) -> bool:
    """Whether the kernels compute with tensors like `x`."""
    return x.is_cuda and x.dtype in _DTYPES and runs_on(x.device)


@cache
def runs_on(device: torch.device) -> bool:
    """Whether the kernels run on a device."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
