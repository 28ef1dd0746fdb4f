"""The operations of `torch_ops` on `Rows`: each notes itself in their recording, for a program to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from models.attention_metadata import ENDLESS
from models.backends.cpu import library
from models.backends.cpu.library import Kind
from models.backends.cpu.program import Work
from models.backends.cpu.recording import COUNT, Angles, Cache, Chosen, Given, Rows, Sight


def rms_norm(x: Rows, weight: Tensor, eps: float) -> Rows:
    """See `torch_ops.rms_norm`."""
    return _norm(Kind.RMS_NORM, x, weight, None, eps)


def rms_norm_from_one(x: Rows, weight: Tensor, eps: float) -> Rows:
    """See `torch_ops.rms_norm_from_one`."""
    return _norm(Kind.RMS_NORM_FROM_ONE, x, weight, None, eps)


def layer_norm(x: Rows, weight: Tensor, bias: Tensor | None, eps: float) -> Rows:
    """See `torch_ops.layer_norm`."""
    return _norm(Kind.LAYER_NORM, x, weight, bias, eps)


def _norm(kind: Kind, x: Rows, weight: Tensor, bias: Tensor | None, eps: float) -> Rows:
    out, width = x.new(x.dtype, *x.shape_of_row), x.shape_of_row[-1]
    fields = {
        "x": x,
        "stride": x.stride_of_rows,
        "weight": weight,
        "bias": bias,
        "out": out,
        "rows": x.count,
        "parts": x.width // width,
        "width": width,
        "eps": eps,
    }
    x.recording.emit(kind, x.dtype, "norm", library.NormTask, fields, out)
    return out


def take_rows(x: Rows, index: Chosen) -> Rows:
    """See `torch_ops.take_rows`."""
    out, size = replace(x, count=index.count).new(x.dtype, *x.shape_of_row), x.dtype.itemsize
    fields = {
        "x": x,
        "stride": x.stride_of_rows * size,
        "index": index,
        "out": out,
        "rows": index.count,
        "width": x.width * size,
    }
    x.recording.emit(Kind.TAKE_ROWS, x.dtype, "choice of rows", library.RowChoiceTask, fields, out)
    return out


def rotate(x: Rows, cos: Angles, sin: Angles, interleaved: bool) -> Rows:
    """See `torch_ops.rotate`."""
    heads, head_dim = x.shape_of_row
    out = x.new(x.dtype, heads, head_dim)
    fields = {
        "x": x,
        "stride": x.stride_of_rows,
        "cos": cos,
        "sin": sin,
        "positions": cos.positions,
        "out": out,
        "tokens": x.count,
        "heads": heads,
        "head_dim": head_dim,
        "half": cos.half,
        "interleaved": interleaved,
    }
    x.recording.emit(Kind.ROTATE, x.dtype, "rotary positions", library.RotationTask, fields, out)
    return out


def write_slots(key_cache: Cache, value_cache: Cache, slots: Given, key: Rows, value: Rows) -> None:
    """See `torch_ops.write_slots`."""
    size = key.dtype.itemsize
    fields = {
        "key": key,
        "key_stride": key.stride_of_rows * size,
        "value": value,
        "value_stride": value.stride_of_rows * size,
        "key_cache": key_cache,
        "value_cache": value_cache,
        "slots": slots,
        "tokens": key.count,
        "width": key.width * size,
    }
    key.recording.emit(Kind.WRITE_SLOTS, key.dtype, "writing the cache", library.SlotWriteTask, fields)


def packed_attention(query: Rows, key: Rows, value: Rows, plan: Sight, scale: float, cap: float | None = None) -> Rows:
    """See `torch_ops.packed_attention`."""
    sides = {"keys": key, "key_stride": key.stride_of_rows, "values": value, "value_stride": value.stride_of_rows}
    return _attention(query, {**sides, "block_size": ENDLESS}, key.shape_of_row[0], plan, scale, cap)


def paged_attention(
    query: Rows, key_cache: Cache, value_cache: Cache, plan: Sight, scale: float, cap: float | None = None
) -> Rows:
    """See `torch_ops.paged_attention`."""
    stride = key_cache.kv_heads * query.shape_of_row[1]
    sides = {"keys": key_cache, "key_stride": stride, "values": value_cache, "value_stride": stride}
    sides["block_size"] = plan.given("block_size")
    return _attention(query, sides, key_cache.kv_heads, plan, scale, cap)


def _attention(query: Rows, sides: dict[str, Any], kv_heads: int, plan: Sight, scale: float, cap: float | None) -> Rows:
    heads, head_dim = query.shape_of_row
    out = query.new(query.dtype, heads, head_dim)
    fields = {
        "query": query,
        "query_stride": query.stride_of_rows,
        **sides,
        **{name: plan.given(name) for name in ("tables", "table_width", "rows", "starts", "ends", "origins", "tiles")},
        "num_tiles": plan.given("num_tiles"),
        "bias": None if plan.bias is None else Given(plan.bias),
        "bias_stride": 0 if plan.bias is None else plan.given("bias_stride"),
        "bias_zero": 0 if plan.bias is None else plan.given("bias_zero"),
        "out": out,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "scale": scale,
        "cap": cap or 0.0,
    }
    query.recording.emit(Kind.ATTEND, query.dtype, "attention", library.AttentionTask, fields, out)
    return out


@dataclass(frozen=True)
class Finish:
    """What follows a product. activation: its number in `kernels/kernels.h`. out: where it is to go, or None."""

    columns: int
    bias: Tensor | None
    activation: int = 0
    times: Rows | None = None
    residual: Rows | None = None
    out: Rows | None = None

    def place(self, x: Rows, writes: torch.dtype) -> Rows:
        """Where the product with `x` goes."""
        if self.out is None:
            return x.new(writes, self.columns)
        assert (self.out.dtype, self.out.width) == (writes, self.columns)
        return self.out

    def fields(self, out: Rows) -> dict[str, Any]:
        times, residual = self.times, self.residual
        return {
            "bias": self.bias,
            "times": times,
            "times_stride": 0 if times is None else times.stride_of_rows,
            "residual": residual,
            "residual_stride": 0 if residual is None else residual.stride_of_rows,
            "out": out,
            "out_stride": self.columns,
            "columns": self.columns,
            "activation": self.activation,
        }


def linear(x: Rows, weight: Tensor, bias: Tensor | None) -> Rows:
    """See `torch_ops.linear`."""
    follows = Finish(weight.shape[0], None if bias is None else bias.float())
    return float_linear(x, weight, False, x.dtype, follows)


def float_linear(x: Rows, weight: Tensor, packed: bool, writes: torch.dtype, finish: Finish) -> Rows:
    """See `cpu_linear.FloatLinear`. weight: in panels, or as it lies."""
    out = finish.place(x, writes)
    fields = {
        "x": x,
        "stride": x.stride_of_rows,
        "rows": x.count,
        "width": x.width,
        "weight": weight,
        "finish": finish.fields(out),
        "packed": packed,
        "writes": library.CODES[writes],
    }
    name, work = _product(x, weight, finish)
    x.recording.emit(Kind.FLOAT_LINEAR, x.dtype, name, library.FloatLinearTask, fields, out, work)
    return out


def int8_linear(
    x: Rows, weight: Tensor, scales: Tensor, offsets: Tensor, padded: int, writes: torch.dtype, finish: Finish
) -> Rows:
    """See `cpu_linear.Int8Linear`. weight: in panels."""
    rows, row_scales = x.recording.rounded(x, padded)
    out = finish.place(x, writes)
    fields = {
        "x": rows,
        "row_scales": row_scales,
        "rows": x.count,
        "padded": padded,
        "weight": weight,
        "weight_scales": scales,
        "offsets": offsets,
        "finish": finish.fields(out),
    }
    name, work = _product(x, weight, finish)
    x.recording.emit(Kind.INT8_LINEAR, writes, name, library.Int8LinearTask, fields, out, work)
    return out


def survey(logits: Rows) -> None:
    """See `torch_choice.survey`. How much is wanted, and where it goes, is given by the names of `survey_fields`."""
    fields = {"logits": logits, "rows": logits.count, "stride": logits.stride_of_rows, "width": logits.width}
    fields |= {name: Given(("survey", name)) for name in ("count", "values", "ids", "log_sums", "finite")}
    logits.recording.emit(Kind.SURVEY, logits.dtype, "survey", library.SurveyTask, fields)


def _product(x: Rows, weight: Tensor, finish: Finish) -> tuple[str, Work]:
    """What a product is called, and what it has to do. A place of its own is where logits go."""
    name = f"product {x.width} to {finish.columns}" if finish.out is None else "output head"
    return name, Work(weight.nbytes, 2 * x.width * finish.columns, x.count is COUNT)
