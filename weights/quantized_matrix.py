"""A matrix of small codes with a scale per group of inputs: the common form of all quantised checkpoints.

`weights.quantized` reads it from files. `models.layers.linear` holds it until a backend packs it for a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weights.finite import is_finite

_CONVERTED_TOGETHER = 1 << 18
"""Number of weights that are dequantised at a time, so that intermediate results stay in the processor's cache."""


@dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """A quantised matrix: `weight[o, i] = scales[o, i // group] * value(codes[o, i]) - minimums[o, i // group]`.

    Methods that rearrange a matrix have the names and arguments of tensor methods, so that `weights.rules` can convert
    it. A change along the inputs dequantises, and returns a float32 tensor. After `unflatten` there may be several
    dimensions before the inputs.

    codes: [out, in], uint8 or int8, one code per byte.
    bits: bits per code, 2 to 8.
    group: number of neighbouring inputs that share a scale. The last group of a row may be shorter.
    scales: [out, groups], float32.
    minimums: [out, groups], float32, or None for zero.
    table: [2 ** bits], float32, value of each code, which is then uint8; None if a code is its value. Never on the
        meta device.
    units: [out, in / block, 1 or 2], float32: unit of the scales and, if there are minimums, unit of the minimums, for
        each block of inputs. Scales and minimums are then integers times their units. None for other matrices.
    """

    codes: Tensor
    bits: int
    group: int
    scales: Tensor
    minimums: Tensor | None = None
    table: Tensor | None = None
    units: Tensor | None = None

    def __post_init__(self) -> None:
        groups = (*self.codes.shape[:-1], -(-self.codes.shape[-1] // self.group))
        assert 2 <= self.bits <= 8 and self.codes.dtype in (torch.uint8, torch.int8)
        assert tuple(self.scales.shape) == groups, (self.codes.shape, self.group, self.scales.shape)
        assert self.minimums is None or tuple(self.minimums.shape) == groups
        assert self.units is None or (self.units.dim() == self.codes.dim() + 1 and self.units.shape[-1] in (1, 2))
        assert self.table is None or (len(self.table) == 1 << self.bits and self.codes.dtype == torch.uint8)
        assert all(part.dtype == torch.float32 for part in self._parts()[1:])

    @property
    def shape(self) -> torch.Size:
        """Shape of the weights, [out, in]."""
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        """Memory of the matrix in bytes, in this form with one byte per code."""
        return sum(part.nbytes for part in self._parts())

    @property
    def is_meta(self) -> bool:
        """Whether the matrix is on the meta device: shapes without contents."""
        return self.codes.is_meta

    def numel(self) -> int:
        """Number of weights."""
        return self.codes.numel()

    def is_finite(self) -> bool:
        """Whether all weights are finite."""
        return all(is_finite(part) for part in self._parts()[1:]) and (
            self.table is None or is_finite(self.table) or is_finite(self.dequantized(torch.float32))
        )

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The weights as a tensor [out, in], computed in float32 and rounded to `dtype`."""
        result = torch.empty(self.shape, dtype=dtype, device=self.codes.device)
        if self.is_meta:
            return result
        width = self.shape[-1]
        codes, scales, out = self.codes.reshape(-1, width), self.scales.reshape(-1, self.scales.shape[-1]), result
        minimums = None if self.minimums is None else self.minimums.reshape(scales.shape)
        out = result.view(-1, width)
        rows = max(1, _CONVERTED_TOGETHER // max(width, 1))
        for first in range(0, len(codes), rows):
            part = slice(first, first + rows)
            values = codes[part].float() if self.table is None else self.table[codes[part].int()]
            values = values * self._of_each_input(scales[part])
            out[part] = values if minimums is None else values - self._of_each_input(minimums[part])
        return result

    def clone(self) -> QuantizedMatrix:
        """A contiguous copy that shares no memory with this matrix."""
        return self._map(lambda part: part.clone(memory_format=torch.contiguous_format))

    def to_meta(self) -> QuantizedMatrix:
        """A matrix with the same shapes and dtypes on the meta device, without contents."""
        return self._map(lambda part: torch.empty(part.shape, dtype=part.dtype, device="meta"))

    def equal(self, other: QuantizedMatrix) -> bool:
        """Whether two matrices have the same layout and bitwise equal contents."""
        return (
            self.shape == other.shape
            and self.has_layout_of(other)
            and all(
                torch.equal(part, other_part) for part, other_part in zip(self._parts(), other._parts(), strict=True)
            )
        )

    def has_layout_of(self, other: QuantizedMatrix) -> bool:
        """Whether two matrices differ only in contents and number of output features, so that they can be joined."""
        tables = self.table is other.table or (
            self.table is not None and other.table is not None and torch.equal(self.table, other.table)
        )
        mine, theirs = ((m.bits, m.group, m.codes.dtype, m.minimums is None) for m in (self, other))
        widths = [[part.shape[1:] for part in matrix._parts()] for matrix in (self, other)]
        return tables and mine == theirs and widths[0] == widths[1]

    @staticmethod
    def concatenated(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
        """Concatenate matrices of equal layout along the output features."""
        return QuantizedMatrix.joined(matrices, concatenate_rows)

    @staticmethod
    def joined(matrices: Sequence[QuantizedMatrix], join: Callable[[Sequence[Tensor]], Tensor]) -> QuantizedMatrix:
        """Join matrices of equal layout along the output features.

        join: joins tensors along their first dimension. It is called once with the codes of all matrices, once with
            their scales, and so on.
        """
        first = matrices[0]
        assert all(first.has_layout_of(matrix) for matrix in matrices)
        by_field = zip(*(matrix._parts() for matrix in matrices), strict=True)
        joined = iter([join(parts) for parts in by_field])
        return first._map(lambda part: next(joined))

    # ------------------------------------------------------------------------------ rearrangement, as tensors have it

    def unflatten(self, dim: int, sizes: Sequence[int]) -> QuantizedMatrix | Tensor:
        """Split the dimension `dim` into several dimensions of the given sizes."""
        if self._is_input(dim):
            return self.dequantized(torch.float32).unflatten(dim, tuple(sizes))  # type: ignore[no-any-return, no-untyped-call]
        return self._map(lambda part: part.unflatten(dim % self.codes.dim(), tuple(sizes)))  # type: ignore[no-untyped-call]

    def flatten(self, start: int, end: int) -> QuantizedMatrix | Tensor:
        """Join the dimensions `start` to `end`, both included."""
        if self._is_input(end) and start != end:
            return self.dequantized(torch.float32).flatten(start, end)
        return self._map(lambda part: part.flatten(start % self.codes.dim(), end % self.codes.dim()))

    def split(self, sizes: Sequence[int], dim: int = 0) -> Sequence[QuantizedMatrix | Tensor]:
        """Split the dimension `dim` into parts of the given sizes. Raises ValueError if they do not add up to it."""
        if sum(sizes) != self.shape[dim]:
            raise ValueError("the parts do not add up to the dimension")
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        return [self.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=True)]

    def narrow(self, dim: int, start: int, length: int) -> QuantizedMatrix | Tensor:
        """The entries `start` to `start + length - 1` of the dimension `dim`."""
        if self._is_input(dim):
            return self.dequantized(torch.float32).narrow(dim, start, length)
        return self._map(lambda part: part.narrow(dim % self.codes.dim(), start, length))

    def transpose(self, one: int, other: int) -> QuantizedMatrix | Tensor:
        """Exchange the dimensions `one` and `other`."""
        if self._is_input(one) or self._is_input(other):
            return self.dequantized(torch.float32).transpose(one, other)
        return self._map(lambda part: part.transpose(one % self.codes.dim(), other % self.codes.dim()))

    def repeat_interleave(self, times: int, dim: int) -> QuantizedMatrix | Tensor:
        """Repeat each entry of the dimension `dim` `times` times."""
        if self._is_input(dim):
            return self.dequantized(torch.float32).repeat_interleave(times, dim)
        return self._map(lambda part: part.repeat_interleave(times, dim % self.codes.dim()))

    def with_inputs(self, order: Sequence[int], width: int) -> QuantizedMatrix | Tensor:
        """Reorder runs of neighbouring inputs.

        The result is a float32 tensor if `width` is no multiple of the group size. `units` become None if the blocks of
        inputs that share a unit do not consist of whole runs; the weights stay the same.

        order: for each run of the result, its index in this matrix. width: number of inputs in a run.
        """
        if width % self.group:
            runs = self.dequantized(torch.float32).unflatten(-1, (-1, width))  # type: ignore[no-untyped-call]
            return runs[..., list(order), :].flatten(-2)  # type: ignore[no-any-return]

        def reordered(part: Tensor) -> Tensor:
            runs = part.unflatten(self.codes.dim() - 1, (len(order), -1))  # type: ignore[no-untyped-call]
            chosen = runs.index_select(self.codes.dim() - 1, torch.tensor(list(order), device=part.device))
            return chosen.flatten(self.codes.dim() - 1, self.codes.dim())  # type: ignore[no-any-return]

        units = self.units
        if units is not None and units.shape[-2] % len(order):
            units = None
        return replace(self, units=units)._map(reordered)

    def _is_input(self, dim: int) -> bool:
        return dim % self.codes.dim() == self.codes.dim() - 1

    def _of_each_input(self, of_groups: Tensor) -> Tensor:
        """Expand one number per group to one number per input: [rows, groups] to [rows, in]."""
        repeated = of_groups[:, :, None].expand(-1, -1, self.group).reshape(len(of_groups), -1)
        return repeated[:, : self.shape[-1]]

    def _parts(self) -> list[Tensor]:
        return [part for part in (self.codes, self.scales, self.minimums, self.units) if part is not None]

    def _map(self, change: Callable[[Tensor], Tensor]) -> QuantizedMatrix:
        """Apply `change` to codes, scales, minimums and units, in the order of `_parts`. The table stays as it is."""
        return QuantizedMatrix(
            change(self.codes),
            self.bits,
            self.group,
            change(self.scales),
            None if self.minimums is None else change(self.minimums),
            self.table,
            None if self.units is None else change(self.units),
        )


def concatenate_rows(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors along the first dimension.

    On the meta device this avoids `torch.cat`, which would import a compiler and take a second.
    """
    first = tensors[0]
    if first.is_meta:
        return first.new_empty((sum(map(len, tensors)), *first.shape[1:]))
    return torch.cat(list(tensors))
