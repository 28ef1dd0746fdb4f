"""Checkpoints of bitsandbytes: 4 bits with a table of values (Dettmers et al. 2023, arXiv:2305.14314), and int8.

Names and layouts are those of the package bitsandbytes 0.50 (https://github.com/bitsandbytes-foundation/bitsandbytes).

- 4 bits: `weight` has the codes of the flattened matrix, two per byte, the first in the high bits. `weight.absmax` has
  a scale for each block of codes, `weight.quant_map` the value of each code. The scales may themselves be quantised,
  with `weight.nested_absmax`, `weight.nested_quant_map` and an offset. `weight.quant_state.*` is JSON as bytes.
- 8 bits: `weight` [out, in], int8, and `SCB` [out], the largest magnitude of each row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from weights.quantized.parts import Description, Parts, combine, layout
from weights.quantized.settings import QuantizationSettings
from weights.quantized_matrix import QuantizedMatrix
from weights.stored import Stored, StoredTensor

_STATE = "quant_state.bitsandbytes__"
_STATES = (f"{_STATE}nf4", f"{_STATE}fp4")
_MAX_STATE_BYTES = 1 << 16
_MAX_BLOCK = 1 << 20
_MAX_OFFSET = 1e30
_FORMAT = "weight_format"
_LARGEST = 127


class BitsAndBytes:
    """Reads the matrices of a bitsandbytes checkpoint. Implements `QuantizedFormat`.

    settings: the object `quantization_config`. Raises WeightsError for an unsupported setting.
    """

    def __init__(self, settings: QuantizationSettings) -> None:
        four = settings.flag("load_in_4bit", False) or settings.flag("_load_in_4bit", False)
        self._bits = 4 if four else 8
        kind = settings.choice("bnb_4bit_quant_type", ("nf4", "fp4"), "fp4") if four else "int8"
        self.description = f"bitsandbytes {kind}"
        self.unused = ""

    def matrices(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Stored]:
        def role(name: str, tensor: StoredTensor) -> tuple[str, str] | None:
            module, found, ending = name.rpartition(".weight.")
            if found:
                return f"{module}.weight", ending
            module, _, ending = name.rpartition(".")
            if ending in ("SCB", _FORMAT):
                return f"{module}.weight", ending
            mark = f"{name}.absmax" if self._bits == 4 else f"{module}.SCB"
            is_main = ending == "weight" and mark in stored
            return (name, "") if is_main else None

        return combine(stored, role, ("",), _four_bits if self._bits == 4 else _eight_bits)


def _four_bits(parts: Parts) -> Description:
    state = _state(parts)
    out, width = state["shape"]
    block, count = state["blocksize"], math.prod(state["shape"])
    blocks = -(-count // block)
    is_nested = "nested_absmax" in parts
    # Any dtype may store the codes, as `bnb_4bit_quant_storage` says.
    if parts.nbytes("") != -(-count // 2):
        raise ValueError(f"weight has {parts.nbytes('')} bytes, which do not hold {[out, width]} codes of 4 bits")
    parts.check("quant_map", (torch.float32,), (16,))
    if is_nested:
        nested = state["nested_blocksize"]
        parts.check("absmax", (torch.uint8,), (blocks,))
        parts.check("nested_absmax", (torch.float32,), (-(-blocks // nested),))
        parts.check("nested_quant_map", (torch.float32,), (256,))
    else:
        parts.check_floats("absmax", (blocks,))
    group = math.gcd(width, block)
    table = parts.read("quant_map").clone()

    def read() -> QuantizedMatrix:
        packed = parts.read("").contiguous().view(torch.uint8).flatten()
        codes = torch.stack((packed >> 4, packed & 15), 1).flatten()[:count].view(out, width)
        scales = parts.read("absmax")
        if is_nested:
            units = parts.read("nested_absmax").repeat_interleave(nested)[:blocks]
            scales = parts.read("nested_quant_map")[scales.int()] * units + state["nested_offset"]
        # A block may end within a row. The size of a group therefore divides both the block size and the row width.
        each = torch.arange(0, count, group) // block
        return QuantizedMatrix(codes, 4, group, scales.float()[each].view(out, -1), table=table)

    return layout((out, width), 4, group, table=table), read


def _state(parts: Parts) -> dict[str, Any]:
    """The JSON object that describes a matrix of 4 bits: `shape` and `blocksize`, and how its scales are quantised.

    Raises ValueError for a value that is missing or impossible.
    """
    ending = next((ending for ending in _STATES if ending in parts), _STATES[0])
    (size,) = parts.shape(ending, 1)
    parts.check(ending, (torch.uint8,))
    if size > _MAX_STATE_BYTES:
        raise ValueError(f"{ending} has {size} bytes, more than {_MAX_STATE_BYTES}")
    try:
        state = json.loads(bytes(parts.read(ending).tolist()))
    except (ValueError, RecursionError):
        raise ValueError(f"{ending} is not JSON") from None
    if not isinstance(state, dict) or not _are_sizes(state.get("shape"), 2):
        raise ValueError(f"{ending} has no shape of a matrix")
    names = ["blocksize", *(["nested_blocksize"] if "nested_absmax" in parts else [])]
    for name in names:
        if not _are_sizes([state.get(name)], 1) or state[name] > _MAX_BLOCK:
            raise ValueError(f"{ending} has no valid {name!r}")
    offset = state.get("nested_offset", 0.0)
    if isinstance(offset, bool) or not isinstance(offset, int | float) or not -_MAX_OFFSET < offset < _MAX_OFFSET:
        raise ValueError(f"{ending} has no valid 'nested_offset'")
    return {**state, "nested_offset": offset}


def _are_sizes(value: object, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(type(size) is int and size > 0 for size in value)


def _eight_bits(parts: Parts) -> Description:
    out, width = parts.shape("", 2)
    parts.check("", (torch.int8,))
    parts.check_floats("SCB", (out,))
    if _FORMAT in parts:
        parts.check(_FORMAT, (torch.uint8,), (), (1,))
        if int(parts.read(_FORMAT)) != 0:
            raise ValueError(f"{_FORMAT} is not that of rows, which is the only one that is supported")
    # bitsandbytes keeps large activations in floating point. For weights in groups, our kernels round activations in
    # blocks, so that a large activation costs precision in its block only.
    group = next((size for size in (128, 64, 32) if width % size == 0), width)

    def read() -> QuantizedMatrix:
        scales = (parts.read("SCB").float() / _LARGEST)[:, None]
        return QuantizedMatrix(parts.read(""), 8, group, scales.expand(-1, width // group).contiguous())

    return layout((out, width), 8, group, signed=True), read
