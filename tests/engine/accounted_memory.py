"""Simulate the memory of a device: count the bytes of tensors that torch's operations create on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AccountedMemory(TorchDispatchMode):
    """Context manager that counts the bytes of tensors that operations create inside it. Implements `DeviceMemory`.

    Tensors that existed before, such as weights, are not counted. Our CPU kernels must be switched off, because they
    allocate memory outside of torch.

    total_bytes: size of the simulated memory.
    """

    def __init__(self, total_bytes: int) -> None:
        super().__init__()
        self.total_bytes = total_bytes
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._peak = 0
        # Upper bound of the used bytes. Freed tensors are subtracted only when it exceeds the peak.
        self._bound = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in given:
                storage = made.untyped_storage()
                self._storages[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
                self._bound += storage.nbytes()
                if self._bound > self._peak:
                    self._peak = max(self._peak, self.used_bytes())
        return result

    def used_bytes(self) -> int:
        """Bytes of all counted tensors that still exist."""
        self._storages = {key: entry for key, entry in self._storages.items() if not entry[0].expired()}
        self._bound = sum(size for _, size in self._storages.values())
        return self._bound

    def free_bytes(self) -> int:
        gc.collect()
        return self.total_bytes - self.used_bytes()

    def peak_bytes(self, run: Callable[[], None]) -> int:
        gc.collect()
        before = self._peak = self.used_bytes()
        run()
        return self._peak - before

    def kept_bytes(self, make: Callable[[], object]) -> int:
        before = self.free_bytes()
        result = make()
        held = before - self.free_bytes()
        del result
        return held
