"""Write quantised matrices as compressed-tensors stores them: the reverse of `weights.quantized.compressed_tensors`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weights.quantized.fp8 import DTYPE as FP8
from weights.quantized.fp8 import TABLE
from weights.quantized.parts import layout, pack
from weights.quantized_matrix import QuantizedMatrix

_INT8_INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
"""Settings for int8 weights with a scale per output feature: activations are rounded to int8 at run time, per token."""


@dataclass(frozen=True)
class Scheme:
    """How a matrix is written.

    bits: bits per code, 4, 6 or 8.
    group: number of inputs that share a scale, a divisor of the number of inputs. None for one scale per output
        feature, which needs 8 bits.
    is_float: whether the codes are fp8 numbers, not integers.
    """

    bits: int
    group: int | None
    is_float: bool = False

    @property
    def format(self) -> str:
        """Name of the format in `quantization_config`, such as `pack-quantized`."""
        if self.group is not None:
            return "pack-quantized"
        return "float-quantized" if self.is_float else "int-quantized"

    def layout(self, shape: Sequence[int]) -> QuantizedMatrix:
        """A matrix of this scheme on the meta device (shapes without contents). shape: [out, in]."""
        table = TABLE if self.is_float else None
        return layout(shape, self.bits, self.group or shape[1], signed=table is None, table=table)


def parts_of(matrix: QuantizedMatrix, scheme: Scheme) -> dict[str, Tensor]:
    """The tensors that store a matrix, by the ending of their names.

    matrix: [out, in], with the layout of the scheme; may be on the meta device. Scales of groups must be numbers that
        float16 can store.
    """
    assert matrix.codes.dim() == 2 and (matrix.bits, matrix.group) == (scheme.bits, scheme.group or matrix.shape[1])
    if scheme.group is None:
        codes = matrix.codes if matrix.table is None else matrix.codes.view(FP8)
        return {"weight": codes, "weight_scale": matrix.scales}
    assert matrix.shape[1] % scheme.group == 0
    codes = matrix.codes.view(torch.uint8) + (1 << (scheme.bits - 1))
    return {
        "weight_packed": pack(codes, scheme.bits),
        "weight_scale": matrix.scales.half(),
        "weight_shape": torch.tensor(matrix.shape),
    }


def quantization_config(schemes: Mapping[str, Scheme], others: Collection[str]) -> dict[str, Any]:
    """The value of `quantization_config` in `config.json`.

    schemes: scheme of each quantised module, by the module's name.
    others: names of the modules whose matrices are not quantised.
    """
    groups: dict[str, Any] = {}
    found = sorted(set(schemes.values()), key=lambda scheme: (scheme.bits, -(scheme.group or 0)))
    for index, scheme in enumerate(found):
        modules = [module for module, of_module in schemes.items() if of_module == scheme]
        groups[f"group_{index}"] = {
            "targets": module_patterns(modules, [*others, *(schemes.keys() - set(modules))]),
            "weights": {
                "num_bits": scheme.bits,
                "type": "float" if scheme.is_float else "int",
                "symmetric": True,
                "strategy": "channel" if scheme.group is None else "group",
                "dynamic": False,
                "group_size": scheme.group,
            },
            "input_activations": _INT8_INPUTS if scheme.format == "int-quantized" else None,
            "output_activations": None,
            "format": scheme.format,
        }
    return {
        "quant_method": "compressed-tensors",
        "format": found[0].format,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": module_patterns(others, schemes.keys()),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def module_patterns(modules: Collection[str], others: Collection[str]) -> Sequence[str]:
    """Regular expressions, after `re:`, that match all `modules` and none of `others`.

    A number in a name is replaced by any number, and any prefix may precede a name, because the names depend on the
    class that loads the model. Where such an expression would match one of `others`, the names are listed instead.
    """
    by_pattern: dict[str, list[str]] = {}
    for module in modules:
        path = r"\.".join(r"\d+" if part.isdecimal() else re.escape(part) for part in module.split("."))
        by_pattern.setdefault(rf"(.*\.)?{path}$", []).append(module)
    patterns: list[str] = []
    for pattern, matched in by_pattern.items():
        compiled = re.compile(pattern)
        patterns += matched if any(map(compiled.match, others)) else [f"re:{pattern}"]
    return patterns
