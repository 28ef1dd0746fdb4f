"""Matrices in 4-bit floating point with 8-bit scales (NVFP4), of NVIDIA's Model Optimizer and compressed-tensors.

Codes are E2M1 numbers, two per byte, the first in the low bits: [out, in / 2]. 16 inputs share a scale in E4M3:
[out, in / 16]. All scales of a matrix share one float32 factor, whose inverse compressed-tensors stores.
Source: https://github.com/NVIDIA/Model-Optimizer, `qtensor/nvfp4_tensor.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from weights.quantized.fp8 import DTYPE as FP8
from weights.quantized.fp8 import fp8_matrix
from weights.quantized.mxfp4 import DOUBLED
from weights.quantized.parts import Description, Parts, combine, layout, part_of_module
from weights.quantized.settings import QuantizationSettings
from weights.quantized_matrix import QuantizedMatrix
from weights.stored import Stored, StoredTensor

GROUP = 16
_BITS = 4
_PARTS = ("weight", "weight_scale", "weight_scale_2")
_UNUSED = (".input_scale", ".k_scale", ".v_scale", ".k_proj.output_scale", ".v_proj.output_scale")


class ModelOpt:
    """Reads the matrices of a Model Optimizer checkpoint: NVFP4 or fp8. Implements `QuantizedFormat`.

    Loading reports tensors that scale a layer's inputs (`pre_quant_scale`) as unexpected, because they are not applied.

    settings: the object `quantization_config`, or `quantization` in `hf_quant_config.json`. Raises WeightsError for an
        unsupported setting.
    """

    def __init__(self, settings: QuantizationSettings) -> None:
        algorithm = settings.choice("quant_algo", ("NVFP4", "FP8"))
        if algorithm == "NVFP4" and settings.get("group_size") is not None and settings.group_size() != GROUP:
            settings.refuse("group_size", f"only {GROUP} is supported for NVFP4")
        self.description = f"Model Optimizer {algorithm}"
        unused = [] if settings.get("kv_cache_quant_algo") is None else ["scales of keys and values"]
        self.unused = " and ".join(["static scales of activations", *unused])

    def matrices(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Stored]:
        return combine(stored, _role, ("weight",), _describe, _UNUSED)


def nvfp4_matrix(parts: Parts, codes: str, scale: str, factor: str, *, divides: bool) -> Description:
    """Describe a matrix in NVFP4, or one matrix per expert.

    codes, scale, factor: endings of the names of the tensors with the codes, the scales and their factor.
    divides: whether scales are divided by the factor, not multiplied.
    Raises ValueError for tensors of another shape or dtype.
    """
    *experts, out, half = parts.shape(codes)
    groups = 2 * half // GROUP
    parts.check(codes, (torch.uint8,), (*experts, out, groups * GROUP // 2))
    parts.check(scale, (FP8,), (*experts, out, groups))
    parts.check(factor, (torch.float32,), (), (1,), *([tuple(experts)] if experts else []))

    def read() -> QuantizedMatrix:
        numbers = parts.read(codes)
        found = torch.stack((numbers & 15, numbers >> 4), -1).flatten(-2)
        whole = parts.read(factor).float()
        whole = whole.reshape(*whole.shape, 1, 1) if experts and whole.dim() == len(experts) else whole.reshape(())
        # The table has twice the numbers, which are integers, so the scales are halved.
        scales = parts.read(scale).float() * ((0.5 / whole) if divides else (0.5 * whole))
        return QuantizedMatrix(found, _BITS, GROUP, scales, table=DOUBLED)

    return layout((*experts, out, groups * GROUP), _BITS, GROUP, table=DOUBLED), read


def _describe(parts: Parts) -> Description:
    if parts.dtype("weight") == FP8:
        return fp8_matrix(parts, "weight", "weight_scale", None)
    return nvfp4_matrix(parts, "weight", "weight_scale", "weight_scale_2", divides=False)


def _role(name: str, tensor: StoredTensor) -> tuple[str, str] | None:
    found = part_of_module(name, _PARTS)
    return None if found is not None and found[1] == "weight" and tensor.dtype not in (torch.uint8, FP8) else found
