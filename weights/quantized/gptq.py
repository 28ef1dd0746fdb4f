"""GPTQ checkpoints of AutoGPTQ and GPTQModel, with 2, 3, 4 or 8 bits (Frantar et al. 2022, arXiv:2210.17323).

A matrix is stored transposed, as `qweight` [in * bits / 32, out], `qzeros` [groups, out * bits / 32], `scales`
[groups, out] and `g_idx` [in], the group of each input. Version 1 of the format stores zero points minus 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import torch

from weights.quantized.parts import (
    Description,
    Parts,
    by_output,
    combine,
    groups_of_inputs,
    groups_text,
    layout,
    part_of_module,
    signed,
    unpack,
)
from weights.quantized.settings import QuantizationSettings
from weights.quantized_matrix import QuantizedMatrix
from weights.stored import Stored, StoredTensor

_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_BITS = (2, 3, 4, 8)


class Gptq:
    """Reads the matrices of a GPTQ checkpoint. Implements `QuantizedFormat`.

    settings: the object `quantization_config`. Raises WeightsError for an unsupported setting.
    """

    def __init__(self, settings: QuantizationSettings) -> None:
        self._settings = settings
        self._bits, self._group = settings.choice("bits", _BITS, 4), settings.group_size()
        version = settings.choice("checkpoint_format", ("gptq", "gptq_v2"), settings.get("format") or "gptq")
        self._zero_offset = 1 if version == "gptq" else 0
        settings.refuse_unless("pack_dtype", "int32")
        self._overrides = settings.parts("dynamic")
        self.description = (
            f"{'GPTQ' if version == 'gptq' else 'GPTQ v2'}, {self._bits} bits, {groups_text(self._group)}"
        )

    unused = ""

    def matrices(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Stored]:
        combined = combine(stored, _role, ("qweight",), self._describe)
        modules = {name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")}
        return {
            name: _with_unused_bias(tensor) if name.endswith(".bias") and name[:-5] in modules else tensor
            for name, tensor in combined.items()
        }

    def _describe(self, parts: Parts) -> Description:
        bits, group_size = self._of_module(parts.name.removesuffix(".weight"))
        rows, out = parts.shape("qweight", 2)
        parts.check("qweight", (torch.int32,))
        width, left_over = divmod(rows * 32, bits)
        if left_over:
            raise ValueError(f"qweight has {rows} rows, which hold no whole number of {bits}-bit codes")
        group = width if group_size == -1 else group_size
        groups = -(-width // group)
        parts.check_floats("scales", (groups, out))
        parts.check("qzeros", (torch.int32,), (groups, -(-out * bits // 32)))
        order = groups_of_inputs(parts, "g_idx", width, group)
        shared = group if order is None else 1
        zeros = (unpack(parts.read("qzeros"), bits, out) + self._zero_offset) & ((1 << bits) - 1)
        symmetric = bool((zeros == 1 << (bits - 1)).all())

        def read() -> QuantizedMatrix:
            codes = unpack(parts.read("qweight").T.contiguous(), bits, width)
            scales = parts.read("scales").float()
            found = by_output(scales, order), None if symmetric else by_output(scales * zeros, order)
            return QuantizedMatrix(signed(codes, bits) if symmetric else codes, bits, shared, *found)

        return layout((out, width), bits, shared, signed=symmetric, minimums=not symmetric), read

    def _of_module(self, module: str) -> tuple[int, int]:
        """Bits and group size (-1 for all inputs) of a module. `dynamic` may override them by regular expression."""
        for pattern, values in self._overrides.items():
            try:
                matched = re.match(pattern.removeprefix("+:"), module)
            except re.error:
                self._settings.refuse("dynamic", "has a name that is no regular expression")
            if matched is not None and not pattern.startswith("-:"):
                return values.choice("bits", _BITS, self._bits), values.group_size(default=self._group)
        return self._bits, self._group


def _role(name: str, tensor: StoredTensor) -> tuple[str, str] | None:
    return part_of_module(name, _PARTS)


def _with_unused_bias(tensor: Stored) -> Stored:
    """Mark a bias as ignored if it is zero and the model has no bias.

    AutoGPTQ gives every quantised layer a bias, which is zero where the model has none.
    """
    return replace(tensor, unused_if_zero=True) if isinstance(tensor, StoredTensor) else tensor
