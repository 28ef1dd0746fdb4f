"""Locks pages of host memory, so that a CUDA device copies to and from it while the host goes on."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor


def lock_pages(tensor: Tensor, owner: object, device: torch.device) -> None:
    """Lock the memory of a tensor on the host until its owner is dropped. No effect if `device` is not CUDA.

    torch's `pin_memory` is not used, because it rounds the size up to a power of two.

    owner: an object that holds the tensor. Nothing else may hold the tensor longer.
    Raises RuntimeError if the system does not let the process lock that much memory.
    """
    if device.type != "cuda":
        return
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(runtime.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
    if status:
        raise RuntimeError(f"cudaHostRegister failed with error {status}")
    weakref.finalize(owner, _unlock, tensor.data_ptr(), device).atexit = False


def _unlock(address: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # a copy may be under way
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
