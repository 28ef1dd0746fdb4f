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
    """Copy values to the device; integers of Python become int64. The copy may still be under way at the return."""
    array = values if isinstance(values, np.ndarray) else np.array(values, dtype=np.int64)
    return torch.from_numpy(array).to(device, non_blocking=True)


def read_together(*tensors: Tensor) -> list[NDArray[Any]]:
    """Tensors of one device as arrays on the host. Waits for the device once. Tensors on the CPU are not copied."""
    if tensors[0].device.type == "cpu":
        return [tensor.numpy() for tensor in tensors]
    return unpacked(packed(tensors).cpu(), tensors)


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Copy the bytes of tensors into one tensor, one after the other: [bytes], uint8."""
    return torch.cat([_flat(tensor).view(torch.uint8) for tensor in tensors])


def _flat(tensor: Tensor) -> Tensor:
    """A tensor in one dimension with stride 1. A contiguous tensor of one element can have another stride."""
    flat = tensor.contiguous().view(-1)
    return flat.as_strided(flat.shape, (1,))


def unpacked(data: Tensor, tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Arrays like `tensors`, from the bytes that `packed` has made of these. data: [bytes], uint8, on the CPU."""
    parts = torch.split(data, [tensor.numel() * tensor.element_size() for tensor in tensors])
    # A copy of each part, because its first byte may not be aligned for its dtype.
    pairs = zip(parts, tensors, strict=True)
    return [part.clone().view(tensor.dtype).view(tensor.shape).numpy() for part, tensor in pairs]


class HostTopK(NamedTuple):
    """Results of a `LogitsTopK` on the host, from which tokens are chosen.

    ids, values: [rows, k], int64 and float32. is_finite: [rows], bool.
    """

    ids: NDArray[np.int64]
    values: NDArray[np.float32]
    is_finite: NDArray[np.bool_]

    @classmethod
    def of(cls, top_k: LogitsTopK) -> HostTopK:
        return cls(*read_together(top_k.ids, top_k.values, top_k.is_finite))

    def rows(self, indices: list[int]) -> HostTopK:
        """The results of some rows."""
        return HostTopK(self.ids[indices], self.values[indices], self.is_finite[indices])
