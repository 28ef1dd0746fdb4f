"""The compiled kernels behind the same functions as `torch_ops`: float32 and bfloat16 on a CPU.

Each row gives the same bits for every number of rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from models.attention_plan import ENDLESS, AttentionPlan
from models.config import Activation
from models.ops import library, recorded_ops, torch_ops
from models.ops.library import Kind
from models.ops.recording import Rows

_ACTIVATIONS: Mapping[Activation, int] = {
    "relu": 1,
    "gelu": 2,
    "gelu_tanh": 3,
    "gelu_quick": 4,
    "silu": 5,
    "tanh": 6,
}
"""`enum Activation` of `native/kernels.h`."""

_PANEL = 32


def available() -> bool:
    """Whether the kernels were built."""
    return library.load() is not None


def takes(x: Tensor) -> bool:
    """Whether the kernels are for such a tensor."""
    return x.is_cpu and x.dtype in library.CODES


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `torch_ops.rms_norm`."""
    return _norm(Kind.RMS_NORM, x, weight, None, eps)


def rms_norm_from_one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `torch_ops.rms_norm_from_one`."""
    return _norm(Kind.RMS_NORM_FROM_ONE, x, weight, None, eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """See `torch_ops.layer_norm`."""
    return _norm(Kind.LAYER_NORM, x, weight, bias, eps)


def _norm(kind: Kind, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    width = x.shape[-1]
    if x.dim() > 2 or x.stride(-1) != 1:
        x = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    task = library.NormTask(
        x.data_ptr(),
        x.stride(0) if x.dim() == 2 else width,
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        x.numel() // width,
        1,
        width,
        eps,
    )
    library.do(kind, x.dtype, task)
    return out


def sum_of_rows(
    parts: Sequence[tuple[Tensor | None, Tensor]], scale: float = 1.0, onto: Tensor | None = None
) -> Tensor:
    """See `torch_ops.sum_of_rows`."""
    indices = [None if index is None else index.contiguous() for index, _ in parts]
    begun = indices[0] if onto is None else onto
    assert begun is not None
    onto = None if onto is None else onto.contiguous()
    dtype, width = parts[0][1].dtype, parts[0][1].shape[1]
    out = torch.empty(len(begun), width, dtype=dtype)
    places = [
        library.Lookup(None if index is None else index.data_ptr(), table.data_ptr(), len(table))
        for index, (_, table) in zip(indices, parts, strict=True)
    ]
    first = None if onto is None else onto.data_ptr()
    task = library.RowSumTask(
        (library.Lookup * library.MOST_TABLES)(*places), len(places), first, scale, out.data_ptr(), len(out), width
    )
    if not library.loaded().triptych_row_sum(library.CODES[dtype], ctypes.byref(task)):
        raise IndexError(f"an index is out of range of tables of {[len(table) for _, table in parts]} rows")
    return out


def means_of_spans(x: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """See `torch_ops.means_of_spans`."""
    x, places = x.contiguous(), np.array(spans, dtype=np.int64)
    out = torch.empty(len(spans), x.shape[1])
    task = library.SpanMeanTask(x.data_ptr(), places.ctypes.data, out.data_ptr(), len(x), len(spans), x.shape[1])
    library.do(Kind.SPAN_MEAN, x.dtype, task)
    return out


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """See `torch_ops.take_rows`."""
    x, size = x if x[:1].is_contiguous() else x.contiguous(), x.element_size()
    out = torch.empty(len(index), *x.shape[1:], dtype=x.dtype)
    places = x.data_ptr(), x.stride(0) * size, index.data_ptr(), out.data_ptr()
    task = library.RowChoiceTask(*places, len(index), x.shape[1:].numel() * size)
    library.do(Kind.TAKE_ROWS, x.dtype, task)
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """See `torch_ops.rotate`."""
    tokens, heads, head_dim = x.shape
    if x.stride(2) != 1 or x.stride(1) != head_dim:
        x = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    task = library.RotationTask(
        x.data_ptr(),
        x.stride(0),
        cos.data_ptr(),
        sin.data_ptr(),
        None,
        out.data_ptr(),
        tokens,
        heads,
        head_dim,
        cos.shape[-1],
        interleaved,
    )
    library.do(Kind.ROTATE, x.dtype, task)
    return out


def write_slots(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """See `torch_ops.write_slots`."""
    if key_cache.shape != value_cache.shape or key.stride(-1) != 1 or value.stride(-1) != 1:
        return torch_ops.write_slots(key_cache, value_cache, slots, key, value)
    head_dim = key.shape[2]
    if key.stride(1) != head_dim or value.stride(1) != head_dim:
        key, value = key.contiguous(), value.contiguous()
    size = key.element_size()
    task = library.SlotWriteTask(
        key.data_ptr(),
        key.stride(0) * size,
        value.data_ptr(),
        value.stride(0) * size,
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        slots.data_ptr(),
        key.shape[0],
        key.shape[1] * head_dim * size,
    )
    library.do(Kind.WRITE_SLOTS, key.dtype, task)
    return None


def copy_blocks(caches: Sequence[Tensor], copies: Sequence[tuple[int, int, int, int]]) -> None:
    """See `torch_ops.copy_blocks`. What is not asked for is not copied."""
    pointers = np.array([cache.data_ptr() for cache in caches], dtype=np.int64)
    slot_bytes = np.array([cache.stride(1) * cache.element_size() for cache in caches], dtype=np.int64)
    table = np.array(copies, dtype=np.int64)
    library.loaded().triptych_copy_blocks(
        pointers.ctypes.data,
        slot_bytes.ctypes.data,
        len(caches),
        caches[0].shape[1],
        table.ctypes.data,
        len(copies),
    )


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float, cap: float | None = None
) -> Tensor:
    """See `torch_ops.packed_attention`."""
    return _attend(query, _whole_heads(key), _whole_heads(value), plan, scale, cap)


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan, scale: float, cap: float | None = None
) -> Tensor:
    """See `torch_ops.paged_attention`."""
    return _attend(query, key_cache, value_cache, plan, scale, cap)


def _whole_heads(x: Tensor) -> Tensor:
    """[tokens, heads, head_dim], copied where a token's heads do not lie one after the other."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, scale: float, cap: float | None
) -> Tensor:
    """keys, values: [tokens, kv_heads, head_dim], or where the plan has tables [blocks, block_size, kv_heads,
    head_dim]."""
    query = _whole_heads(query)
    out = torch.empty(query.shape, dtype=query.dtype)
    tables = plan.tables
    queries, bias = plan.queries, plan.bias_float32
    task = library.AttentionTask(
        query.data_ptr(),
        query.stride(0),
        keys.data_ptr(),
        keys.stride(-3),
        values.data_ptr(),
        values.stride(-3),
        tables.data_ptr(),
        tables.shape[1],
        plan.block_size or ENDLESS,
        *queries.addresses,
        None if bias is None else bias.data_ptr(),
        0 if bias is None else bias.shape[1],
        plan.bias_zero,
        out.data_ptr(),
        queries.num_tiles,
        query.shape[1],
        keys.shape[-2],
        query.shape[2],
        scale,
        cap or 0.0,
    )
    library.do(Kind.ATTEND, query.dtype, task)
    return out


class FloatLinear:
    """`x W^T + b` with the weight in panels of channels (`native/float_linear.h`), or, to share its memory, as it is.

    weight: [out, in], float32 or bfloat16. bias: [out] or None. packed: false leaves the weight where it is. A row
    gives the same bits for every number of rows, in either of the two layouts.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, packed: bool = True) -> None:
        self._columns, self._width = weight.shape
        self._is_packed = packed
        self._weight = _panels(weight) if packed else weight.contiguous()
        self._bias = None if bias is None else bias.float().contiguous()
        self.nbytes = self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(
        self,
        x: Tensor,
        activation: Activation | None = None,
        times: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """[rows, in] -> [rows, out]: the activation of the product, times another tensor, plus another."""
        if isinstance(x, Rows):
            follows = recorded_ops.Finish(self._columns, self._bias, _number(activation), times, residual)
            return recorded_ops.float_linear(x, self._weight, self._is_packed, follows)
        x = _rows(x)
        y = torch.empty(x.shape[0], self._columns, dtype=x.dtype)
        finish, _kept = _finish(y, self._bias, activation, times, residual)
        task = library.FloatLinearTask(
            x.data_ptr(), x.stride(0), x.shape[0], self._width, 0, self._weight.data_ptr(), finish, self._is_packed
        )
        library.do(Kind.FLOAT_LINEAR, x.dtype, task)
        return y

    def part(self, first: int, end: int) -> FloatLinear | None:
        """See `PackedLinear`."""
        if first % _PANEL:
            return None
        found = copy(self)
        found._columns, found._weight = end - first, self._weight[first * _width_of(self._weight, self._columns) :]
        found._bias = None if self._bias is None else self._bias[first:end]
        return found

    def rows(self, index: Tensor) -> Tensor:
        """Rows of the weight, as of a table of embeddings. index: [n], int64 -> [n, in]. Raises IndexError."""
        assert self._is_packed
        index = index.contiguous()
        found = torch.empty(len(index), self._width, dtype=self._weight.dtype)
        places = self._weight.data_ptr(), self._columns, self._width, index.data_ptr(), len(index), found.data_ptr()
        if not library.loaded().triptych_float_unpack(library.CODES[found.dtype], *places):
            raise IndexError(f"indices of {self._columns} rows out of range")
        return found


def _width_of(panels: Tensor, columns: int) -> int:
    """Numbers that a column takes in panels."""
    return panels.numel() // (-(-columns // _PANEL) * _PANEL)


def _panels(weight: Tensor) -> Tensor:
    columns, width = weight.shape
    weight = weight.contiguous()
    group = 4 // weight.element_size()
    packed = torch.empty(-(-columns // _PANEL) * _PANEL * (-(-width // group) * group), dtype=weight.dtype)
    library.loaded().triptych_float_pack(
        library.CODES[weight.dtype], weight.data_ptr(), columns, width, packed.data_ptr()
    )
    return packed


def _number(activation: Activation | None) -> int:
    return 0 if activation is None else _ACTIVATIONS[activation]


def _rows(x: Tensor) -> Tensor:
    """x: [rows, width], with its numbers side by side in each row."""
    return x if x.stride(1) == 1 else x.contiguous()


def _finish(
    y: Tensor, bias: Tensor | None, activation: Activation | None, times: Tensor | None, residual: Tensor | None
) -> tuple[library.Finish, object]:
    """What follows a product that is written to `y`, and what must stay alive until it is there."""
    times, residual = (None if side is None else _rows(side) for side in (times, residual))
    finish = library.Finish(
        None if bias is None else bias.data_ptr(),
        None if times is None else times.data_ptr(),
        0 if times is None else times.stride(0),
        None if residual is None else residual.data_ptr(),
        0 if residual is None else residual.stride(0),
        y.data_ptr(),
        y.stride(0),
        y.shape[1],
        _number(activation),
    )
    return finish, (times, residual)


class Int8Linear:
    """See `torch_ops.Int8Linear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, writes: torch.dtype | None = None) -> None:
        rounded, scales = torch_ops.quantize_int8(weight)
        columns, self._width = rounded.shape
        self._dtype, self._writes = weight.dtype, writes or weight.dtype
        self._padded = -(-self._width // 4) * 4
        self._packed = torch.empty(-(-columns // _PANEL) * _PANEL * self._padded, dtype=torch.int8)
        self._offsets = torch.empty(columns, dtype=torch.int32)
        self._scales = scales
        self._bias = None if bias is None else bias.float().contiguous()
        self.nbytes = sum(x.nbytes for x in (self._packed, self._offsets, self._scales, self._bias) if x is not None)
        library.loaded().triptych_int8_pack(
            rounded.data_ptr(), columns, self._width, self._packed.data_ptr(), self._offsets.data_ptr()
        )

    def part(self, first: int, end: int) -> Int8Linear | None:
        """See `PackedLinear`."""
        if first % _PANEL:
            return None
        found = copy(self)
        found._packed = self._packed[first * self._padded :]
        found._offsets, found._scales = self._offsets[first:end], self._scales[first:end]
        found._bias = None if self._bias is None else self._bias[first:end]
        return found

    def __call__(
        self,
        x: Tensor,
        activation: Activation | None = None,
        times: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Like `FloatLinear`."""
        if isinstance(x, Rows):
            follows = recorded_ops.Finish(self._scales.shape[0], self._bias, _number(activation), times, residual)
            weight = self._packed, self._scales, self._offsets
            return recorded_ops.int8_linear(x, *weight, self._padded, self._writes, follows)
        rows, x = x.shape[0], _rows(x)
        y = torch.empty(rows, self._scales.shape[0], dtype=self._writes)
        rounded, row_scales = torch.empty(rows, self._padded, dtype=torch.uint8), torch.empty(rows)
        places = rounded.data_ptr(), row_scales.data_ptr()
        rounding = library.QuantiseTask(x.data_ptr(), x.stride(0), *places, rows, self._width, self._padded)
        library.do(Kind.QUANTISE, x.dtype, rounding)
        finish, _kept = _finish(y, self._bias, activation, times, residual)
        task = library.Int8LinearTask(
            *places,
            rows,
            self._padded,
            0,
            self._packed.data_ptr(),
            self._scales.data_ptr(),
            self._offsets.data_ptr(),
            finish,
        )
        library.do(Kind.INT8_LINEAR, y.dtype, task)
        return y

    def rows(self, index: Tensor) -> Tensor:
        """See `torch_ops.Int8Linear.rows`. Raises IndexError."""
        columns, index = len(self._scales), index.contiguous()
        found = torch.empty(len(index), self._width, dtype=self._dtype)
        places = self._packed.data_ptr(), self._scales.data_ptr(), columns, self._width, index.data_ptr(), len(index)
        if not library.loaded().triptych_int8_unpack(library.CODES[found.dtype], *places, found.data_ptr()):
            raise IndexError(f"indices of {columns} rows out of range")
        return found


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `torch_ops.linear`. The weight stays as it is: for tables and matrices that are read elsewhere too."""
    if x.dim() != 2 or weight.dtype != x.dtype:
        return torch_ops.linear(x, weight, bias)
    return FloatLinear(weight, bias, packed=False)(x)
