"""Copies between the host and the device. All results of a step are read in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.logits import LogitsTopK


def to_device(values: NDArray[Any] | Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Copy values to the device. Python integers become int64. The copy may still run when the function returns."""
    array = values if isinstance(values, np.ndarray) else np.array(values, dtype=np.int64)
    return torch.from_numpy(array).to(device, non_blocking=True)


def read_together(*tensors: Tensor) -> list[NDArray[Any]]:
    """Copy tensors to the host as arrays, waiting for the device once. Arrays share the memory of tensors on the CPU.

    tensors: all on the same device.
    """
    if tensors[0].device.type == "cpu":
        return [tensor.numpy() for tensor in tensors]
    return unpacked(packed(tensors).cpu(), tensors)


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Copy the bytes of tensors into one tensor, one after the other: [bytes], uint8."""
    return torch.cat([_flat(tensor).view(torch.uint8) for tensor in tensors])


def _flat(tensor: Tensor) -> Tensor:
    """Flatten a tensor to one dimension with stride 1. A contiguous tensor of one element may have another stride."""
    flat = tensor.contiguous().view(-1)
    return flat.as_strided(flat.shape, (1,))


def unpacked(data: Tensor, tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Undo `packed`: arrays with the dtypes and shapes of `tensors`.

    data: [bytes], uint8, on the CPU: the result of `packed(tensors)`, copied to the host.
    """
    parts = torch.split(data, [tensor.numel() * tensor.element_size() for tensor in tensors])
    # A copy of each part, because its first byte may not be aligned for its dtype.
    pairs = zip(parts, tensors, strict=True)
    return [part.clone().view(tensor.dtype).view(tensor.shape).numpy() for part, tensor in pairs]


class HostTopK(NamedTuple):
    """The top-k of each row of logits, copied to the host.

    ids, values: [rows, k], int64 and float32: token ids and their logits, largest first.
    is_finite: [rows], bool: whether all logits of the row are finite.
    """

    ids: NDArray[np.int64]
    values: NDArray[np.float32]
    is_finite: NDArray[np.bool_]

    @classmethod
    def of(cls, top_k: LogitsTopK) -> HostTopK:
        return cls(*read_together(top_k.ids, top_k.values, top_k.is_finite))

    def rows(self, indices: list[int]) -> HostTopK:
        """The top-k of the rows at `indices`."""
        return HostTopK(self.ids[indices], self.values[indices], self.is_finite[indices])
