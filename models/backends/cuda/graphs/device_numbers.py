"""Integers that the host computes for each step, and their copy to device memory, where captured steps read them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.cuda.graphs.graph_runner import GraphRunner


class DeviceNumbers:
    """Memory for int64 integers on the host and on the device, and the copy from the host to the device.

    size: largest number of integers of a step.
    reserved: number of integers at the start of `on_device` that the device itself writes.
    on_device: [reserved + size], int64.
    """

    def __init__(self, runner: GraphRunner, device: torch.device, size: int, reserved: int = 0) -> None:
        self._pinned, self._copied, self._reserved = runner.pinned(size), runner.event(), reserved
        self._numbers: NDArray[np.int64] = self._pinned.numpy()
        self.on_device = torch.zeros(reserved + size, dtype=torch.int64, device=device)

    @property
    def copied(self) -> Tensor:
        """The part on the device to which `send` copies: [size], int64."""
        return self.on_device[self._reserved :]

    def to_write(self) -> NDArray[np.int64]:
        """Host memory for the integers of a step: [size]. Waits until the device has read the previous integers."""
        self._copied.synchronize()
        return self._numbers

    def send(self, count: int) -> Tensor:
        """Copy the first `count` integers to the device, without waiting. Returns them on the device."""
        copied = self.copied[:count]
        copied.copy_(self._pinned[:count], non_blocking=True)
        self._copied.record()
        return copied
