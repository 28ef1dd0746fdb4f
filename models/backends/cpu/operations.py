"""Operations by compiled kernels: float32 and bfloat16 on a CPU.

Each method describes one operation once: its arguments as the fields of its struct in `kernels/kernels.h`. With
tensors it calls the library; with symbolic tensors it appends the call to their trace. Each row of a result has the
same bits for every number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.cpu import library
from models.backends.cpu.attention_view import CpuAttentionView
from models.backends.cpu.library import ACTIVATION_CODES, DTYPE_CODES, OPERATIONS, ROUTER_SCORE_CODES
from models.backends.cpu.programs.trace import SymbolicTensor
from models.backends.operands import RotaryAngles, XieluShape
from models.backends.rounded_slots import CacheSide, RoundedSlots
from models.backends.torch.attention import TorchAttention
from models.backends.torch.operations import TorchOperations
from models.config import Activation, RouterConfig

_NUMBERS = frozenset((int, float, bool, NoneType))
"""Types of field values that are not tensors."""

MAX_TABLES = 3
"""Largest number of tables in one `sum_of_rows`: tokens, positions, token types."""


def available() -> bool:
    """Whether a library of this version was built."""
    try:
        return library.load() is not None
    except library.StaleKernels:
        return False


def takes(x: Tensor) -> bool:
    """Whether the kernels compute with tensors of the device and dtype of `x`."""
    return x.is_cpu and x.dtype in DTYPE_CODES


def run(name: str, dtype: torch.dtype, like: Tensor, /, **fields: Any) -> None:
    """Run one operation of `kernels.h`, or record it where `like` is symbolic.

    dtype: dtype in which the kernel computes.
    like: any tensor argument of the operation, which tells whether the arguments are symbolic.
    fields: fields of the operation's struct: a number, a tensor, which is passed as its address, or None for null.
    Raises IndexError if an argument is an index outside its table.
    """
    operation = OPERATIONS[name]
    if isinstance(like, SymbolicTensor):
        return like.trace.append(operation, dtype, fields)
    values = operation.values_of(fields)
    packed = operation.pack(
        *[
            value if type(value) is int else value or 0 if type(value) in _NUMBERS else value.data_ptr()
            for value in values
        ]
    )
    if not library.loaded().triptych_run_operation(operation.code, DTYPE_CODES[dtype], packed):
        raise IndexError(f"{name}: an index lies outside its table")
    return None


def _norm(name: str, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    shape = tuple(x.shape)
    width, is_vector = shape[-1], len(shape) == 1
    if len(shape) not in (2, 3) or not has_dense_rows(x):
        x = x.contiguous()
    out = x.new_empty(shape)
    run(
        name,
        x.dtype,
        x,
        x=x,
        stride=width if is_vector else x.stride(0),
        weight=weight,
        bias=bias,
        out=out,
        rows=1 if is_vector else shape[0],
        parts=prod(shape[1:-1]),
        width=width,
        eps=eps,
    )
    return out


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    cap: float | None,
    sinks: Tensor | None,
    scales: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Attend to ragged or paged keys.

    keys, values: [tokens, kv_heads, head_dim], or [blocks, block_size, kv_heads, head_dim] with block tables.
    scales: the scales of an int8 cache by field name; None if keys and values are floats.
    query: [tokens, heads, head_dim]. scale: factor of the scores.
    cap: scaled scores become `cap * tanh(score / cap)` before masks; None for no cap.
    sinks: [heads], float32, a score per head that takes part in the softmax and has no value; None for no sinks.
    Returns a tensor like the query.
    """
    query = query if has_dense_rows(query) else query.contiguous()
    out = query.new_empty(tuple(query.shape))
    run(
        "attend" if scales is None else "attend_int8",
        query.dtype,
        query,
        **CpuAttentionView.fields_of(metadata),
        query=query,
        query_stride=query.stride(0),
        keys=keys,
        key_stride=keys.stride(-3),
        values=values,
        value_stride=values.stride(-3),
        out=out,
        heads=query.shape[1],
        kv_heads=keys.shape[-2],
        head_dim=query.shape[2],
        scale=scale,
        cap=cap,
        sinks=sinks,
        **(scales or {}),
    )
    return out


def has_dense_rows(x: Tensor) -> bool:
    """Whether the elements of each row are contiguous. x: [rows, width] or [rows, heads, head_dim]."""
    return x.stride(-1) == 1 and (x.dim() == 2 or x.stride(1) == x.shape[2])


class CpuOperations(TorchOperations):
    """Norms, sums of table rows, expert routing, activations, rotation and cache writes, by compiled kernels."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return _norm("rms_norm", x, weight, None, eps)

    def rms_norm_from_one(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return _norm("rms_norm_from_one", x, weight, None, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return _norm("layer_norm", x, weight, bias, eps)

    def sum_of_rows(
        self, lookups: Sequence[tuple[Tensor | None, Tensor]], scale: float = 1.0, onto: Tensor | None = None
    ) -> Tensor:
        onto = None if onto is None else onto.contiguous()
        first = lookups[0][0] if onto is None else onto
        assert first is not None
        table = lookups[0][1]
        rows, width = first.shape[0], table.shape[1]
        out = first.new_empty((rows, width), dtype=table.dtype)
        # Contiguous copies must live until the call.
        indices = [None if index is None else index.contiguous() for index, _ in lookups]
        fields: dict[str, Any] = {}
        for number in range(MAX_TABLES):
            in_use = number < len(lookups)
            fields[f"index_{number}"] = indices[number] if in_use else None
            fields[f"table_{number}"] = lookups[number][1] if in_use else None
            fields[f"table_rows_{number}"] = lookups[number][1].shape[0] if in_use else 0
        run(
            "sum_of_rows",
            table.dtype,
            first,
            **fields,
            count=len(lookups),
            onto=onto,
            scale=scale,
            out=out,
            rows=rows,
            width=width,
        )
        return out

    def means_of_spans(self, x: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
        x = x.contiguous()
        bounds = torch.from_numpy(np.array(spans, dtype=np.int64))
        out = torch.empty(len(spans), x.shape[1])
        run("means_of_spans", x.dtype, x, x=x, spans=bounds, out=out, rows=len(x), count=len(spans), width=x.shape[1])
        return out

    def scale_by_row(self, x: Tensor, factors: Tensor) -> Tensor:
        if not has_dense_rows(x):
            x = x.contiguous()
        factors = factors.contiguous()
        out = x.new_empty(tuple(x.shape))
        fields = {"x": x, "stride": x.stride(0), "factors": factors, "out": out}
        run("scale_by_row", x.dtype, x, **fields, rows=x.shape[0], width=prod(x.shape[1:]))
        return out

    def copy_into(self, x: Tensor, out: Tensor) -> None:
        x = x.contiguous()
        run("scale", x.dtype, x, x=x, factor=1.0, out=out, rows=x.shape[0], width=x.shape[1])

    def take_rows(self, x: Tensor, index: Tensor) -> Tensor:
        size = x.element_size()
        if not has_dense_rows(x):
            x = x.contiguous()
        out = x.new_empty((index.shape[0], *x.shape[1:]))
        stride, width = x.stride(0) * size, prod(x.shape[1:]) * size
        run("take_rows", x.dtype, x, x=x, stride=stride, index=index, out=out, rows=index.shape[0], width=width)
        return out

    def route(
        self, logits: Tensor, choices: int, config: RouterConfig, correction: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if not has_dense_rows(logits):
            logits = logits.contiguous()
        rows, num_experts = logits.shape
        shares = logits.new_empty((rows, choices), dtype=torch.float32)
        experts = logits.new_empty((rows, choices), dtype=torch.int64)
        run(
            "route",
            logits.dtype,
            logits,
            logits=logits,
            stride=logits.stride(0),
            rows=rows,
            num_experts=num_experts,
            choices=choices,
            score=ROUTER_SCORE_CODES[config.score],
            correction=None if correction is None else correction.float(),
            groups=config.groups,
            groups_per_row=config.groups_per_token,
            group_members=config.group_members,
            is_normalized=config.normalized,
            epsilon=config.epsilon,
            scale=config.scale,
            tolerance=config.tolerance,
            shares=shares,
            experts=experts,
        )
        return shares, experts

    def xielu(self, x: Tensor, shape: XieluShape) -> Tensor:
        x = x.contiguous()
        rows, width = x.shape
        out = x.new_empty((rows, width))
        run("xielu", x.dtype, x, x=x, out=out, rows=rows, width=width, **shape._asdict())
        return out

    def scaled_activation(self, x: Tensor, scale: float, activation: Activation) -> Tensor:
        x = x.contiguous()
        rows, width = x.shape
        out = x.new_empty((rows, width))
        code = ACTIVATION_CODES[activation]
        run("scaled_activation", x.dtype, x, x=x, out=out, rows=rows, width=width, scale=scale, activation=code)
        return out

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        x = x.contiguous()
        run("soft_cap", x.dtype, x, x=x, out=x, rows=x.shape[0], width=x.shape[1], cap=cap)
        return x

    def rotate(self, x: Tensor, angles: RotaryAngles, interleaved: bool) -> Tensor:
        tokens, heads, head_dim = x.shape
        if not has_dense_rows(x):
            x = x.contiguous()
        out = x.new_empty((tokens, heads, head_dim))
        run(
            "rotate",
            x.dtype,
            x,
            x=x,
            stride=x.stride(0),
            cos=angles.cos_table,
            sin=angles.sin_table,
            positions=angles.positions,
            out=out,
            tokens=tokens,
            heads=heads,
            head_dim=head_dim,
            half=angles.cos_table.shape[-1],
            is_interleaved=interleaved,
        )
        return out

    def write_slots(
        self, key_cache: CacheSide, value_cache: CacheSide, slots: Tensor, key: Tensor, value: Tensor
    ) -> None:
        if key.shape[1:] != value.shape[1:]:
            return super().write_slots(key_cache, value_cache, slots, key, value)
        key = key if has_dense_rows(key) else key.contiguous()
        value = value if has_dense_rows(value) else value.contiguous()
        if isinstance(key_cache, RoundedSlots) and isinstance(value_cache, RoundedSlots):
            return run(
                "write_int8_slots",
                key.dtype,
                key,
                key=key,
                key_stride=key.stride(0),
                value=value,
                value_stride=value.stride(0),
                key_cache=key_cache.codes,
                value_cache=value_cache.codes,
                key_scales=key_cache.scales,
                value_scales=value_cache.scales,
                slots=slots,
                tokens=key.shape[0],
                kv_heads=key.shape[1],
                head_dim=key.shape[2],
                block_size=key_cache.block_size,
            )
        size = key.element_size()
        return run(
            "write_slots",
            key.dtype,
            key,
            key=key,
            key_stride=key.stride(0) * size,
            value=value,
            value_stride=value.stride(0) * size,
            key_cache=key_cache,
            value_cache=value_cache,
            slots=slots,
            tokens=key.shape[0],
            width=prod(key.shape[1:]) * size,
        )

    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[tuple[int, int, int, int]]) -> None:
        """Copy slots between blocks in each cache: exactly the given slots, not whole blocks.

        caches: [blocks, block_size, kv_heads, head_dim] each, with equally many blocks.
        copies: (source block, destination block, first slot, slot after the last). A block is never both a source and a
            destination.
        """
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


class CpuAttention(TorchAttention):
    """Attention over ragged keys and over the blocks of a paged cache, by compiled kernels."""

    def ragged_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        key, value = (side if has_dense_rows(side) else side.contiguous() for side in (key, value))
        return _attend(query, key, value, metadata, scale, cap, sinks)

    def paged_attention(
        self,
        query: Tensor,
        key_cache: CacheSide,
        value_cache: CacheSide,
        metadata: AttentionMetadata,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if isinstance(key_cache, RoundedSlots) and isinstance(value_cache, RoundedSlots):
            scales = {"key_scales": key_cache.scales, "value_scales": value_cache.scales}
            return _attend(query, key_cache.codes, value_cache.codes, metadata, scale, cap, sinks, scales)
        assert not isinstance(key_cache, RoundedSlots) and not isinstance(value_cache, RoundedSlots)
        return _attend(query, key_cache, value_cache, metadata, scale, cap, sinks)
