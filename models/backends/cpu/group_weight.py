"""Linear weights of 4, 6 or 8 bits with a scale per group of inputs, in the layout of `kernels/group_layout.h`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from models.backends.cpu import header
from models.backends.cpu.linear import PANEL, CpuWeight
from models.backends.cpu.operations import run
from models.backends.cpu.programs.trace import SymbolicTensor
from models.backends.huge_pages import empty_in_huge_pages
from models.backends.tensor_memory import PRIVATE, TensorMemory
from weights.quantized_matrix import QuantizedMatrix

_ROUNDED = 32
"""Smallest number of activations that share a scale, `MIN_ROUNDED` of `kernels/kernels.h`."""

_ROUNDED_BYTES = 8
"""Bytes of a `RoundedBlock` of `kernels/rounded_blocks.h`."""

_PACKED_TOGETHER = 1 << 18
"""Number of weights packed at a time, so that intermediate results stay in the processor's cache."""

_MAX_GROUPS = 16
"""Largest number of groups of a block, `MAX_GROUPS` of `kernels/group_layout.h`."""

_STORAGES = header.read_codes(header.PATH.read_text(), "ScaleStorage")


def fits(matrix: QuantizedMatrix) -> bool:
    """Whether the kernels have a layout for a matrix.

    A group must be a whole row, have a multiple of 32 inputs, or have 16 inputs with codes of at most 6 bits.
    A matrix whose codes are indices of a table needs 4-bit codes, int8 values in the table, groups other than 16, and
    no minimums.
    """
    whole = matrix.group >= matrix.shape[1] or matrix.group % 32 == 0
    if matrix.table is not None:
        return whole and matrix.bits == 4 and matrix.minimums is None and _is_int8(matrix.table)
    return whole or (matrix.group == 16 and matrix.bits <= 6)


@dataclass(frozen=True)
class _Layout:
    """Sizes of a packed matrix.

    storage: name of a ScaleStorage: how scales and minimums are stored.
    bits: bits of a stored code.
    group: number of inputs that share a scale.
    block: number of inputs that share a header.
    padded: number of inputs of a row, padded to whole blocks.
    has_table: whether codes are indices of a table of values.
    """

    storage: str
    bits: int
    group: int
    block: int
    padded: int
    has_table: bool

    @property
    def groups(self) -> int:
        return self.block // self.group

    @property
    def rounded(self) -> int:
        """Number of activations that are rounded with one scale: 32, or up to 128 for 4-bit codes without a table.

        Integer sums of 128 products with 4-bit codes do not overflow.
        """
        whole = (size for size in (128, 64) if self.bits == 4 and self.group % size == 0 and not self.has_table)
        return next(whole, _ROUNDED)

    @property
    def header_bytes(self) -> int:
        channel = {
            "HALF": 2,
            "HALF_MINIMUM": 4,
            "HALF_ZERO": 3,
            "SINGLE": 4,
            "SINGLE_MINIMUM": 8,
            "UNIT": 4 + self.groups,
            "UNIT_MINIMUM": 8 + 2 * self.groups,
        }[self.storage]
        return -(-channel * PANEL // 64) * 64

    @property
    def channel_bytes(self) -> int:
        """Bytes of one output channel: its codes, and its part of the headers."""
        return self.padded // self.block * (self.header_bytes // PANEL + self.block * self.bits // 8)


class GroupWeight(CpuWeight):
    """A weight of 4, 6 or 8 bits. Products round the activations to int8, with one scale per 32, 64 or 128 activations.

    matrix: a matrix for which `fits` is true. bias: [out] or None.
    dtype: dtype of the embeddings that `rows` returns.
    out_dtype: dtype of products, float32 or bfloat16; None for `dtype`.
    memory: keeps the packed weight and the bias.
    """

    def __init__(
        self,
        matrix: QuantizedMatrix,
        bias: Tensor | None,
        dtype: torch.dtype,
        out_dtype: torch.dtype | None = None,
        memory: TensorMemory = PRIVATE,
    ) -> None:
        assert fits(matrix)
        # The storage of the scales depends on the values. A process that maps shared weights has no values, so the
        # choice is stored with the weights.
        storage = torch.empty(1, dtype=torch.int64, device=matrix.codes.device)
        if not matrix.is_meta:
            storage.fill_(_STORAGES[_storage(matrix)])
        kept = memory.keep(storage)
        if kept.is_meta and matrix.is_meta:
            name = _storage_of_rounded(matrix)
        else:
            code = int((kept if matrix.is_meta else storage)[0])
            name = next(name for name, value in _STORAGES.items() if value == code)
        layout = _layout(matrix, name)
        super().__init__(matrix.shape, dtype, bias, layout.channel_bytes, out_dtype, memory)
        panels = -(-self._columns // PANEL)
        packed = empty_in_huge_pages(panels * PANEL * layout.channel_bytes, matrix.codes, torch.uint8)
        if not matrix.is_meta:
            _pack(matrix, layout, packed.view(panels, layout.padded // layout.block, -1))
        self._weight, self._layout = memory.keep(packed), layout
        self._table = None if matrix.table is None else matrix.table.to(torch.int8)
        self._row_bytes = layout.padded + layout.padded // layout.rounded * _ROUNDED_BYTES

    def rows(self, index: Tensor) -> Tensor:
        index = index.contiguous()
        out = index.new_empty((index.shape[0], self._width), dtype=self._dtype)
        fields = {"width": self._width, "index": index, "count": index.shape[0], "out": out}
        run("unpack_group_rows", self._dtype, index, **self._weight_fields(), **fields)
        return out

    def _weight_fields(self) -> dict[str, Any]:
        layout = self._layout
        return {
            "weight": self._weight,
            "bits": layout.bits,
            "group": layout.group,
            "block": layout.block,
            "header_bytes": layout.header_bytes,
            "scale_storage": _STORAGES[layout.storage],
            "padded": layout.padded,
            "rounded": layout.rounded,
            "columns": self._columns,
            "table": self._table,
        }

    def _layout_fields(self) -> dict[str, Any]:
        return {"row_bytes": self._row_bytes, **self._weight_fields()}

    def _multiply(self, x: Tensor, fields: dict[str, Any]) -> None:
        if isinstance(x, SymbolicTensor):
            # A program rounds a tensor once for all products that read it.
            key = (x.address, self._layout.padded, self._layout.rounded)
            rounded = x.trace.once(key, lambda: self._quantize(x))
        else:
            rounded = self._quantize(x)
        run("group_linear", self._out_dtype, x, x=rounded, **fields)

    def _multiply_experts(self, x: Tensor, fields: dict[str, Any]) -> None:
        run("group_experts", x.dtype, x, **fields)

    def _quantize(self, x: Tensor) -> Tensor:
        """Round x to int8.

        Returns [rows, row_bytes], uint8: the rounded values of each row, and a `RoundedBlock` per scale.

        x: [rows, in]; the elements of a row are contiguous.
        """
        rows = x.shape[0]
        rounded = x.new_empty((rows, self._row_bytes), dtype=torch.uint8)
        run(
            "quantize_blocks",
            x.dtype,
            x,
            x=x,
            stride=x.stride(0),
            out=rounded,
            row_bytes=self._row_bytes,
            rows=rows,
            width=self._width,
            padded=self._layout.padded,
            rounded=self._layout.rounded,
        )
        return rounded


def _storage(matrix: QuantizedMatrix) -> str:
    """Name of the smallest storage that represents the scales and minimums of a matrix exactly."""
    if _is_centred(matrix):
        return "UNIT" if _units(matrix) is not None else "HALF" if _is_half(matrix.scales) else "SINGLE"
    minimums = _minimums(matrix)
    if _units(matrix) is not None:
        return "UNIT_MINIMUM"
    if not _is_half(matrix.scales):
        return "SINGLE_MINIMUM"
    if torch.equal(matrix.scales * _zeros(matrix.scales, minimums), minimums):
        return "HALF_ZERO"
    return "HALF_MINIMUM" if _is_half(minimums) else "SINGLE_MINIMUM"


def _storage_of_rounded(matrix: QuantizedMatrix) -> str:
    """Name of the storage for a matrix on the meta device, whose values are unknown.

    Assumes that the matrix comes from a rounding function of `models.backends.torch`.
    """
    if matrix.units is not None:
        return "UNIT" if matrix.minimums is None else "UNIT_MINIMUM"
    return "HALF" if matrix.minimums is None else "HALF_ZERO"


def _layout(matrix: QuantizedMatrix, storage: str) -> _Layout:
    width, units = matrix.shape[1], _units(matrix)
    # One group for a whole row may have any number of inputs.
    group = matrix.group if matrix.group < width else -(-width // _ROUNDED) * _ROUNDED
    block = group if units is None else width // units.shape[1]
    whole = max(block, _ROUNDED)
    padded = -(-width // whole) * whole
    return _Layout(storage, _stored_bits(matrix), group, block, padded, matrix.table is not None)


def _stored_bits(matrix: QuantizedMatrix) -> int:
    return next(bits for bits in (4, 6, 8) if matrix.bits <= bits)


def _units(matrix: QuantizedMatrix) -> Tensor | None:
    """The units of the scales and of the minimums, [out, blocks, 1 or 2]; None if a header cannot store them.

    The scales and minimums of a block are integer multiples of its units.
    """
    units, signed = matrix.units, matrix.codes.dtype == torch.int8 or matrix.table is not None
    if units is None or units.shape[2] != (1 if signed else 2) or signed is not (matrix.minimums is None):
        return None
    block, remainder = divmod(matrix.shape[1], units.shape[1])
    fits = not remainder and block % _ROUNDED == 0 == block % matrix.group and block // matrix.group <= _MAX_GROUPS
    return units if fits else None


def _is_centred(matrix: QuantizedMatrix) -> bool:
    """Whether each weight is `scale * table value` or `scale * (code - middle of the code range)`; no minimums."""
    if matrix.table is not None:
        return True
    if matrix.codes.dtype == torch.int8:
        return matrix.minimums is None
    is_middle = matrix.bits == _stored_bits(matrix) and matrix.minimums is not None
    return is_middle and torch.equal(_minimums(matrix), matrix.scales * _middle(matrix))


def _middle(matrix: QuantizedMatrix) -> int:
    return 1 << (_stored_bits(matrix) - 1)


def _minimums(matrix: QuantizedMatrix) -> Tensor:
    """Minimums for the stored codes, which are unsigned: [out, groups]. A weight is `scale * code - minimum`."""
    minimums = torch.zeros_like(matrix.scales) if matrix.minimums is None else matrix.minimums
    return minimums if matrix.codes.dtype == torch.uint8 else minimums + matrix.scales * _middle(matrix)


def _zeros(scales: Tensor, minimums: Tensor) -> Tensor:
    """Zero points: the minimums divided by the scales, rounded to integers in the range of uint8."""
    return (minimums / torch.where(scales == 0, 1.0, scales)).nan_to_num().round().clamp(0, 255)


def _is_int8(numbers: Tensor) -> bool:
    """Whether all numbers are integers that int8 can represent."""
    return torch.equal(numbers.to(torch.int8).float(), numbers)


def _is_half(numbers: Tensor) -> bool:
    """Whether float16 represents all numbers exactly; NaN counts as exact."""
    return torch.equal(numbers.half().float().nan_to_num(), numbers.nan_to_num())


def _pack(matrix: QuantizedMatrix, layout: _Layout, out: Tensor) -> None:
    """Write a matrix to `out` in the given layout. out: [panels, blocks, bytes of a block], uint8."""
    # Pack as many panels at a time as fit in the processor's cache.
    panels = max(1, _PACKED_TOGETHER // (PANEL * layout.padded))
    for first in range(0, len(out), panels):
        part = out[first : first + panels]
        count = min(panels * PANEL, len(matrix.codes) - first * PANEL)
        rows = cast(QuantizedMatrix, matrix.narrow(0, first * PANEL, count))
        lines = [_lines(field, *part.shape[:2]) for field in _fields(rows, layout.storage)]
        start = 0
        for line in lines:
            part[:, :, start : start + line.shape[2]] = line
            start += line.shape[2]
        part[:, :, start : layout.header_bytes] = 0
        part[:, :, layout.header_bytes :] = _packed_codes(rows.codes, layout, len(part))


def _fields(matrix: QuantizedMatrix, storage: str) -> list[Tensor]:
    """The numbers in the headers, one tensor per field, in order: [out, blocks, numbers per block] each."""
    scales, units, minimums = matrix.scales, _units(matrix), _minimums(matrix)
    if units is None:
        kind = torch.float32 if "SINGLE" in storage else torch.float16
        fields = [scales.to(kind)]
        if storage == "HALF_ZERO":
            fields.append(_zeros(scales, minimums).to(torch.uint8))
        elif "MINIMUM" in storage:
            fields.append(minimums.to(kind))
        return [field[:, :, None] for field in fields]
    numbers = [scales, minimums] if "MINIMUM" in storage else [scales]
    whole = [_multiples(number, units[:, :, place]) for place, number in enumerate(numbers)]
    return [*torch.split(units, 1, dim=2), *whole]


def _multiples(numbers: Tensor, units: Tensor) -> Tensor:
    """Divide scales or minimums by the unit of their block, and round to integers.

    numbers: [out, groups], scales or minimums. units: [out, blocks].
    Returns [out, blocks, groups per block], int8.
    """
    by_block = torch.unflatten(numbers, 1, (units.shape[1], -1))
    multiples = by_block / torch.where(units == 0, 1.0, units)[:, :, None]
    return multiples.nan_to_num().round().to(torch.int8)


def _lines(field: Tensor, panels: int, blocks: int) -> Tensor:
    """Reorder a header field so that equal positions of all channels in a panel are contiguous.

    field: [out, blocks, numbers per block]. Returns [panels, blocks, bytes], uint8.
    """
    padded = torch.unflatten(_padded(field, panels * PANEL, blocks), 0, (panels, PANEL))
    return padded.permute(0, 2, 3, 1).flatten(2).contiguous().view(torch.uint8)


def _packed_codes(codes: Tensor, layout: _Layout, panels: int) -> Tensor:
    """Pack codes of 4, 6 or 8 bits into the kernels' layout. Handles four codes at a time as one int32.

    codes: [out, in], int8 or uint8. Returns [panels, blocks, bytes], uint8.
    """
    unsigned = codes if codes.dtype == torch.uint8 else (codes + (1 << (layout.bits - 1))).view(torch.uint8)
    units = _padded(unsigned, panels * PANEL, layout.padded).view(torch.int32).view(panels, 2, PANEL // 2, -1)
    if layout.bits == 8:
        lines = units.permute(0, 3, 1, 2)
    else:
        lower = units & 0x0F0F0F0F
        lines = (lower[:, 0] | lower[:, 1] << 4).transpose(1, 2)
        if layout.bits == 6:
            upper = torch.unflatten(units >> 4 & 0x03030303, 3, (-1, 2))
            third = upper[:, 0, :, :, 0] | upper[:, 1, :, :, 0] << 2 | upper[:, 0, :, :, 1] << 4
            third = (third | upper[:, 1, :, :, 1] << 6).transpose(1, 2)
            lines = torch.cat([torch.unflatten(lines, 1, (-1, 2)), third[:, :, None]], dim=2)
    return lines.reshape(panels, -1).view(torch.uint8).view(panels, layout.padded // layout.block, -1)


def _padded(field: Tensor, rows: int, width: int) -> Tensor:
    """Pad the first two dimensions with zeros, to `rows` and `width`. Returns a contiguous tensor."""
    if field.shape[:2] == (rows, width):
        return field.contiguous()
    padded = field.new_zeros((rows, width, *field.shape[2:]))
    padded[: field.shape[0], : field.shape[1]] = field
    return padded
