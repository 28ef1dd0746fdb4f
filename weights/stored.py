"""Tensors and quantised matrices in the files of a checkpoint, each read when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from weights.quantized_matrix import QuantizedMatrix


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file of a checkpoint, not read yet.

    dtype: dtype in the file, or None for a dtype that Triptych does not read.
    file: name of the file.
    unused_if_zero: whether the tensor is ignored if the model has no such tensor and all its elements are zero.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    file: str
    _read: Callable[[], Tensor]
    unused_if_zero: bool = False

    @property
    def nbytes(self) -> int:
        """Size in the file, in bytes. For an unknown dtype, one byte per element is assumed."""
        return torch.Size(self.shape).numel() * (self.dtype.itemsize if self.dtype else 1)

    def read(self) -> Tensor:
        """Read the tensor: on the CPU, in its stored dtype, as a view of the memory-mapped file where possible.

        The view is valid while the checkpoint is open.
        """
        return self._read()


class StoredMatrix:
    """A quantised matrix in the files of a checkpoint, not read yet.

    file: name of the file with the matrix's codes.
    nbytes: total size of the matrix's tensors in the files, in bytes.
    describe: returns the matrix on the meta device, and a function that reads it. Raises ValueError, with the reason,
        if the tensors in the files do not fit together.
    """

    def __init__(
        self, file: str, nbytes: int, describe: Callable[[], tuple[QuantizedMatrix, Callable[[], QuantizedMatrix]]]
    ) -> None:
        self.file, self.nbytes, self._describe = file, nbytes, describe

    @cached_property
    def _described(self) -> tuple[QuantizedMatrix, Callable[[], QuantizedMatrix]]:
        return self._describe()

    @property
    def layout(self) -> QuantizedMatrix:
        """The matrix on the meta device (shapes without contents).

        Raises ValueError if the tensors in the files do not fit together.
        """
        return self._described[0]

    def read(self) -> QuantizedMatrix:
        """Read the matrix: on the CPU, with the shapes and dtypes of `layout`.

        It may share memory with the mapped file, and is valid while the checkpoint is open.
        """
        matrix = self._described[1]()
        assert matrix.shape == self.layout.shape and matrix.has_layout_of(self.layout), "the layout is another one"
        return matrix


Stored = StoredTensor | StoredMatrix


class MatrixFormat(Protocol):
    """A format in which several tensors store one quantised matrix. `weights.quantized` has the implementations."""

    def matrices(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Stored]:
        """Replace the tensors of each quantised matrix by the matrix, under its name in an unquantised checkpoint.

        stored: all tensors of the checkpoint, by name. Tensors of no matrix are returned unchanged.
        """
