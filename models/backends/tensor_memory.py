"""Memory for the tensors of a model that is being loaded: private memory, or memory that several processes share."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class TensorMemory(Protocol):
    """Keeps each tensor that a loaded model computes with.

    Loading passes every parameter and packed weight to `keep`, always in the same order.

    is_filled: whether the memory already has the contents of all tensors. The checkpoint's tensors are then not read,
        and the tensors passed to `keep` may be on torch's meta device, which has shapes and dtypes only.
    """

    @property
    def is_filled(self) -> bool: ...

    def keep(self, tensor: Tensor) -> Tensor:
        """Store a tensor in this memory. Returns the stored tensor, with the same shape, dtype and contents.

        The model only reads the returned tensor. A process that only fills the memory for other processes gets a tensor
        on the meta device, because it runs no model.
        """


class PrivateMemory:
    """Leaves tensors where they are. Implements `TensorMemory`."""

    is_filled = False

    def keep(self, tensor: Tensor) -> Tensor:
        return tensor


PRIVATE = PrivateMemory()
