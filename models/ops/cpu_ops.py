"""The compiled kernels behind the same functions as `torch_ops`: float32 and bfloat16 on a CPU.

Each row gives the same bits for every number of rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor

from models.attention_plan import AttentionPlan, Queries
from models.config import Activation
from models.ops import library, torch_ops

_CODES = {torch.float32: 0, torch.bfloat16: 1}
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
    return x.is_cpu and x.dtype in _CODES


def _library() -> ctypes.CDLL:
    loaded = library.load()
    assert loaded is not None
    return loaded


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `torch_ops.rms_norm`."""
    width = x.shape[-1]
    if x.dim() > 2 or x.stride(-1) != 1:
        x = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    stride = x.stride(0) if x.dim() == 2 else width
    rows = x.numel() // width
    _library().triptych_rms_norm(
        _CODES[x.dtype], x.data_ptr(), stride, weight.data_ptr(), out.data_ptr(), rows, width, eps
    )
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """See `torch_ops.rotate`."""
    tokens, heads, head_dim = x.shape
    if x.stride(2) != 1 or x.stride(1) != head_dim:
        x = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    _library().triptych_rotate(
        _CODES[x.dtype],
        x.data_ptr(),
        x.stride(0),
        cos.data_ptr(),
        sin.data_ptr(),
        out.data_ptr(),
        tokens,
        heads,
        head_dim,
        cos.shape[-1],
        interleaved,
    )
    return out


def write_slots(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """See `torch_ops.write_slots`."""
    if key_cache.shape != value_cache.shape or key.stride(-1) != 1 or value.stride(-1) != 1:
        return torch_ops.write_slots(key_cache, value_cache, slots, key, value)
    head_dim = key.shape[2]
    if key.stride(1) != head_dim or value.stride(1) != head_dim:
        key, value = key.contiguous(), value.contiguous()
    size = key.element_size()
    _library().triptych_write_slots(
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
    return None


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan, scale: float, cap: float | None = None
) -> Tensor:
    """See `torch_ops.paged_attention`. Rows of a few queries are computed here, longer ones there."""
    if value_cache.shape != key_cache.shape:
        return torch_ops.paged_attention(query, key_cache, value_cache, plan, scale, cap)
    output = torch.empty(query.shape, dtype=query.dtype)
    if plan.few_queries is not None:
        _attend_few(output, query, key_cache, value_cache, plan, plan.few_queries, scale, cap)
    torch_ops.attend_groups(output, query, key_cache, value_cache, plan, plan.long_groups, scale, cap)
    return output


def _attend_few(
    output: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: AttentionPlan,
    few: Queries,
    scale: float,
    cap: float | None,
) -> None:
    assert plan.block_tables is not None
    whole = few.tokens is None
    asked = query if whole else query[few.tokens]
    if asked.stride(2) != 1 or asked.stride(1) != asked.shape[2]:
        asked = asked.contiguous()
    out = output if whole else torch.empty(asked.shape, dtype=asked.dtype)
    bias = plan.bias_float32
    task = library.PagedAttentionTask(
        asked.data_ptr(),
        asked.stride(0),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        plan.block_tables.data_ptr(),
        plan.block_tables.shape[1],
        few.rows.data_ptr(),
        few.starts.data_ptr(),
        few.ends.data_ptr(),
        few.positions.data_ptr(),
        None if bias is None else bias.data_ptr(),
        0 if bias is None else (bias.shape[1] + 1) // 2,
        out.data_ptr(),
        asked.shape[0],
        asked.shape[1],
        key_cache.shape[2],
        asked.shape[2],
        key_cache.shape[1],
        scale,
        cap or 0.0,
    )
    _library().triptych_paged_attention(_CODES[query.dtype], ctypes.byref(task))
    if not whole:
        output[few.tokens] = out


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
        x = _rows(x)
        y = torch.empty(x.shape[0], self._columns, dtype=x.dtype)
        finish, _kept = _finish(y, self._bias, activation, times, residual)
        task = library.FloatLinearTask(
            x.data_ptr(), x.stride(0), x.shape[0], self._width, 0, self._weight.data_ptr(), finish, self._is_packed
        )
        _library().triptych_float_linear(_CODES[x.dtype], ctypes.byref(task))
        return y

    def rows(self, index: Tensor) -> Tensor:
        """Rows of the weight, as of a table of embeddings. index: [n], int64 -> [n, in]. Raises IndexError."""
        assert self._is_packed
        index = index.contiguous()
        found = torch.empty(len(index), self._width, dtype=self._weight.dtype)
        places = self._weight.data_ptr(), self._columns, self._width, index.data_ptr(), len(index), found.data_ptr()
        if not _library().triptych_float_unpack(_CODES[found.dtype], *places):
            raise IndexError(f"indices of {self._columns} rows out of range")
        return found


def _panels(weight: Tensor) -> Tensor:
    columns, width = weight.shape
    weight = weight.contiguous()
    group = 4 // weight.element_size()
    packed = torch.empty(-(-columns // _PANEL) * _PANEL * (-(-width // group) * group), dtype=weight.dtype)
    _library().triptych_float_pack(_CODES[weight.dtype], weight.data_ptr(), columns, width, packed.data_ptr())
    return packed


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
        0 if activation is None else _ACTIVATIONS[activation],
    )
    return finish, (times, residual)


class Int8Linear:
    """See `torch_ops.Int8Linear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        rounded, scales = torch_ops.quantize_int8(weight)
        columns, self._width = rounded.shape
        self._padded = -(-self._width // 4) * 4
        self._packed = torch.empty(-(-columns // _PANEL) * _PANEL * self._padded, dtype=torch.int8)
        self._offsets = torch.empty(columns, dtype=torch.int32)
        self._scales = scales
        self._bias = None if bias is None else bias.float().contiguous()
        self.nbytes = sum(x.nbytes for x in (self._packed, self._offsets, self._scales, self._bias) if x is not None)
        _library().triptych_int8_pack(
            rounded.data_ptr(), columns, self._width, self._packed.data_ptr(), self._offsets.data_ptr()
        )

    def __call__(
        self,
        x: Tensor,
        activation: Activation | None = None,
        times: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Like `FloatLinear`."""
        rows, x = x.shape[0], _rows(x)
        y = torch.empty(rows, self._scales.shape[0], dtype=x.dtype)
        scratch = torch.empty(rows * self._padded, dtype=torch.uint8)
        scales = torch.empty(rows)
        finish, _kept = _finish(y, self._bias, activation, times, residual)
        task = library.Int8LinearTask(
            scratch.data_ptr(),
            scales.data_ptr(),
            rows,
            self._padded,
            0,
            self._packed.data_ptr(),
            self._scales.data_ptr(),
            self._offsets.data_ptr(),
            finish,
        )
        _library().triptych_int8_linear(_CODES[x.dtype], x.data_ptr(), x.stride(0), self._width, ctypes.byref(task))
        return y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `torch_ops.linear`. The weight stays as it is: for tables and matrices that are read elsewhere too."""
    if x.dim() != 2 or weight.dtype != x.dtype:
        return torch_ops.linear(x, weight, bias)
    return FloatLinear(weight, bias, packed=False)(x)
