"""The compiled kernels behind the same functions as `torch_ops`: float32 and bfloat16 on a CPU.

Each row gives the same bits for every number of rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models.attention_metadata import ENDLESS, AttentionPlan
from models.backends.cpu import library
from models.backends.cpu.library import Kind
from models.backends.cpu.linear import linear as linear
from models.backends.torch import operations as torch_ops


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
    out = torch.empty(begun.shape[0], width, dtype=dtype)
    places = [
        library.Lookup(None if index is None else index.data_ptr(), table.data_ptr(), table.shape[0])
        for index, (_, table) in zip(indices, parts, strict=True)
    ]
    first = None if onto is None else onto.data_ptr()
    task = library.RowSumTask(
        (library.Lookup * library.MOST_TABLES)(*places), len(places), first, scale, out.data_ptr(), out.shape[0], width
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
    out = torch.empty(index.shape[0], *x.shape[1:], dtype=x.dtype)
    places = x.data_ptr(), x.stride(0) * size, index.data_ptr(), out.data_ptr()
    task = library.RowChoiceTask(*places, index.shape[0], x.shape[1:].numel() * size)
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
