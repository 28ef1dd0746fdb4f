"""The compiled kernels behind the same functions as `torch_ops`: float32 and bfloat16 on a CPU.

Products of matrices go through oneDNN by way of torch, in a layout that is made once (`OneDnnLinear`). oneDNN gives
each row the same bits for every number of rows from two up; a single row is therefore computed twice.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from models.activations import activate
from models.attention_plan import AttentionPlan, Queries
from models.config import Activation
from models.ops import library, torch_ops

_CODES = {torch.float32: 0, torch.bfloat16: 1}
_FUSED: Mapping[Activation, tuple[str, str]] = {
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
}
"""What oneDNN calls an activation that it applies while the result is still in registers, and which way to do it."""


def available() -> bool:
    """Whether the kernels were built and torch has the oneDNN products they go with, whose names are private to it."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    has_products = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return library.load() is not None and has_products and all(hasattr(torch.ops.mkldnn, name) for name in names)


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


def copy_blocks(caches: Sequence[Tensor], copies: Sequence[tuple[int, int, int]]) -> None:
    """See `torch_ops.copy_blocks`. What is not asked for is not copied."""
    pointers = torch.tensor([cache.data_ptr() for cache in caches])
    slot_bytes = torch.tensor([cache[0, 0].nbytes for cache in caches])
    table = torch.tensor(copies)
    _library().triptych_copy_blocks(
        pointers.data_ptr(),
        slot_bytes.data_ptr(),
        len(caches),
        caches[0].shape[1],
        table.data_ptr(),
        len(copies),
    )


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


class OneDnnLinear:
    """`x W^T + b` with the weight in oneDNN's own layout, or, to share its memory, as it is.

    weight: [out, in], float32 or bfloat16. bias: [out] or None. packed: false leaves the weight where it is.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, packed: bool = True) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None) if packed else weight
        self._bias = bias
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor, activation: Activation | None = None, times: Tensor | None = None) -> Tensor:
        """[rows, in] -> [rows, out]: the activation of the product, or the product times another tensor."""
        rows = x.shape[0]
        if rows == 1:
            x = x.expand(2, -1)
        if times is not None:
            assert activation is None
            other = times.expand(2, -1) if rows == 1 else times
            y = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, self._bias, "mul")
        else:
            name, way = ("none", "") if activation is None else _FUSED.get(activation, ("none", ""))
            y = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, name, [], way)
            if name == "none" and activation is not None:
                y = activate(y, activation)
        return y[:1] if rows == 1 else y  # type: ignore[no-any-return]


class Int8Linear:
    """See `torch_ops.Int8Linear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        rounded, scales = torch_ops.quantize_int8(weight)
        columns, self._width = rounded.shape
        self._padded = -(-self._width // 4) * 4
        self._packed = torch.empty(-(-columns // 32) * 32 * self._padded, dtype=torch.int8)
        self._offsets = torch.empty(columns, dtype=torch.int32)
        self._scales = scales
        self._bias = None if bias is None else bias.float().contiguous()
        self.nbytes = sum(x.nbytes for x in (self._packed, self._offsets, self._scales, self._bias) if x is not None)
        _library().triptych_int8_pack(
            rounded.data_ptr(), columns, self._width, self._packed.data_ptr(), self._offsets.data_ptr()
        )

    def __call__(self, x: Tensor, activation: Activation | None = None, times: Tensor | None = None) -> Tensor:
        """Like `OneDnnLinear`."""
        rows, columns = x.shape[0], self._scales.shape[0]
        if x.stride(1) != 1:
            x = x.contiguous()
        y = torch.empty(rows, columns, dtype=x.dtype)
        scratch = torch.empty(rows * self._padded, dtype=torch.uint8)
        scales = torch.empty(rows)
        _library().triptych_int8_linear(
            _CODES[x.dtype],
            x.data_ptr(),
            x.stride(0),
            self._packed.data_ptr(),
            self._scales.data_ptr(),
            self._offsets.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            scratch.data_ptr(),
            scales.data_ptr(),
            y.data_ptr(),
            rows,
            self._width,
            columns,
        )
        if activation is not None:
            y = activate(y, activation)
        return y if times is None else y.mul_(times)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `torch_ops.linear`. The weight stays as it is, so that a table of embeddings is not kept twice."""
    if x.dim() != 2:
        return torch_ops.linear(x, weight, bias)
    return OneDnnLinear(weight, bias, packed=False)(x)
