"""Write quantised matrices as compressed-tensors stores them: the reverse of `weights.quantized.compressed_tensors`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from weights.quantized.fp8 import DTYPE as FP8
from weights.quantized_matrix import QuantizedMatrix

_INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "dynamic": False}
_INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
_FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}
_INT8_INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
"""Activations of int8 weights are rounded at run time, each row with its own scale."""


def parts_of(matrix: QuantizedMatrix) -> dict[str, Tensor]:
    """The tensors of a matrix, by the ending of their names.

    matrix: [out, in], without minimums; may be on the meta device. Either signed integers of 4 bits, whose groups have
        a multiple of 8 inputs and divide the row, with scales that are float16 numbers; or int8 or fp8 numbers with one
        scale per output feature.
    """
    assert matrix.minimums is None and matrix.codes.dim() == 2
    if matrix.bits == 4:
        assert matrix.codes.dtype == torch.int8 and matrix.shape[1] % matrix.group == matrix.group % 8 == 0
        codes = (matrix.codes + 8).view(torch.uint8)
        words = (codes[:, ::2] | (codes[:, 1::2] << 4)).view(torch.int32)
        scales = matrix.scales.half()
        return {"weight_packed": words, "weight_scale": scales, "weight_shape": torch.tensor(matrix.shape)}
    assert matrix.bits == 8 and matrix.group == matrix.shape[1]
    codes = matrix.codes if matrix.table is None else matrix.codes.view(FP8)
    return {"weight": codes, "weight_scale": matrix.scales}


def quantization_config(matrices: Mapping[str, QuantizedMatrix], others: Collection[str]) -> dict[str, Any]:
    """The value of `quantization_config` in `config.json`.

    matrices: by the name of the module; may be on the meta device. Their formats differ in the size of groups only.
    others: names of the other modules with a matrix.
    """
    name, weights, inputs = _scheme_of(next(iter(matrices.values())))
    sizes = {matrix.group if matrix.bits == 4 else None for matrix in matrices.values()}
    groups: dict[str, Any] = {}
    for index, size in enumerate(sorted(sizes, key=lambda size: -(size or 0))):
        modules = [module for module, matrix in matrices.items() if size in (None, matrix.group)]
        groups[f"group_{index}"] = {
            "targets": module_patterns(modules, [*others, *(matrices.keys() - set(modules))]),
            "weights": {**weights, "group_size": size},
            "input_activations": inputs,
            "output_activations": None,
            "format": name,
        }
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": module_patterns(others, matrices.keys()),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _scheme_of(matrix: QuantizedMatrix) -> tuple[str, Mapping[str, Any], Mapping[str, Any] | None]:
    """Name of the format, and the settings of weights and activations."""
    if matrix.bits == 4:
        return "pack-quantized", _INT4, None
    return ("int-quantized", _INT8, _INT8_INPUTS) if matrix.table is None else ("float-quantized", _FP8, None)


def module_patterns(modules: Collection[str], others: Collection[str]) -> Sequence[str]:
    """Regular expressions for names of modules, which match none of the others; else the names themselves.

    A number between dots stands for any number. Any prefix may precede a name, because the names of a model depend on
    the class that loads it.
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
