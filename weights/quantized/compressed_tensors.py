"""Checkpoints of compressed-tensors, as llm-compressor writes them: packed integers, int8, fp8 and NVFP4.

Tensor names (`weight_packed` or `weight`, `weight_scale` and others) and settings are those of the package
compressed-tensors (https://github.com/vllm-project/compressed-tensors).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from weights.quantized.fp8 import DTYPE as FP8
from weights.quantized.fp8 import block_of, fp8_matrix
from weights.quantized.nvfp4 import GROUP as NVFP4_GROUP
from weights.quantized.nvfp4 import nvfp4_matrix
from weights.quantized.parts import (
    Description,
    Parts,
    by_output,
    combine,
    groups_of_inputs,
    layout,
    part_of_module,
    scales_of_blocks,
    signed,
    unpack,
)
from weights.quantized.settings import QuantizationSettings
from weights.quantized_matrix import QuantizedMatrix
from weights.stored import Stored, StoredTensor

_NVFP4 = "nvfp4-pack-quantized"
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense", _NVFP4)
_PARTS = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "weight_global_scale",
)
_UNUSED = tuple(
    f".{name}_{number}"
    for name in ("input", "output", "k", "v", "q")
    for number in ("scale", "zero_point", "global_scale")
)


@dataclass(frozen=True)
class _Scheme:
    """How the matrices of some modules are quantised.

    targets: the modules: their names, regular expressions after `re:`, or names of classes such as `Linear`.
    bits: bits per code. is_float: whether codes are floating-point numbers: fp8 with 8 bits, NVFP4 with 4.
    symmetric: whether there are no zero points.
    group: number of neighbouring inputs that share a scale, or None for all inputs of a row.
    block: numbers of output features and of inputs that share a scale, or None if rows do not share scales.
    static_inputs: whether the checkpoint has scales for activations.
    """

    targets: tuple[str, ...]
    bits: int
    is_float: bool
    symmetric: bool
    group: int | None
    block: tuple[int, int] | None
    static_inputs: bool

    @property
    def description(self) -> str:
        if self.block is not None:
            scales = f"blocks of {self.block[0]}x{self.block[1]}"
        else:
            scales = "whole rows" if self.group is None else f"groups of {self.group}"
        floats = "NVFP4" if self.bits == 4 else "fp8 E4M3"
        return f"{floats if self.is_float else f'{self.bits} bits'}, {scales}"


class CompressedTensors:
    """Reads the matrices of a compressed-tensors checkpoint. Implements `QuantizedFormat`.

    settings: the object `quantization_config`, or `compression_config` in older files. Raises WeightsError for an
        unsupported setting.
    """

    def __init__(self, settings: QuantizationSettings) -> None:
        settings.choice("format", (*_FORMATS, "mixed-precision"), "dense")
        settings.refuse_unless("quantization_status", "compressed", "frozen")
        sparsity = settings.part("sparsity_config")
        if sparsity is not None:
            sparsity.refuse_unless("format", "dense")
        transforms = settings.part("transform_config")
        if transforms is not None and transforms.parts("config_groups"):
            settings.refuse("transform_config", "rotations of activations are not supported")
        groups = settings.parts("config_groups")
        schemes = [scheme for scheme in map(_scheme, groups.values()) if scheme is not None]
        self._schemes = schemes
        self.description = (
            f"compressed-tensors, {' and '.join(dict.fromkeys(scheme.description for scheme in schemes))}"
        )
        static = any(scheme.static_inputs for scheme in schemes)
        unused = ["static scales of activations"] if static else []
        unused += ["scales of keys and values"] if settings.get("kv_cache_scheme") else []
        self.unused = " and ".join(unused)

    def matrices(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Stored]:
        return combine(stored, _role, ("weight", "weight_packed"), self._describe, _UNUSED)

    def _describe(self, parts: Parts) -> Description:
        scheme = self._scheme_of(parts.name.removesuffix(".weight"))
        if "weight_packed" in parts and scheme.is_float:
            return nvfp4_matrix(parts, "weight_packed", "weight_scale", "weight_global_scale", divides=True)
        if "weight_packed" in parts:
            return _packed(parts, scheme)
        if scheme.is_float:
            parts.check("weight", (FP8,))
            block = scheme.block or (None if scheme.group is None else (1, scheme.group))
            return fp8_matrix(parts, "weight", "weight_scale", block)
        return _plain(parts, scheme)

    def _scheme_of(self, module: str) -> _Scheme:
        """The scheme whose target matches a module: first its name, then a regular expression, then any class name.

        Raises ValueError if no target matches.
        """

        def rank(target: str) -> int | None:
            if target.startswith("re:"):
                return 1 if re.match(target.removeprefix("re:"), module) else None
            if target == module:
                return 0
            return None if "." in target else 2

        ranked = [(rank(target), scheme) for scheme in self._schemes for target in scheme.targets]
        found = [(place, index) for index, (place, _) in enumerate(ranked) if place is not None]
        if not found:
            raise ValueError("no target of a group in 'config_groups' matches")
        return ranked[min(found)[1]][1]


def _scheme(group: QuantizationSettings) -> _Scheme | None:
    """Read one group of `config_groups`; None if it quantises no weights.

    Raises WeightsError for an unsupported setting.
    """
    weights = group.part("weights")
    if weights is None:
        return None
    group.refuse_unless("format", *_FORMATS)
    is_float = weights.choice("type", ("int", "float"), "int") == "float"
    bits = weights.choice("num_bits", (4, 8) if is_float else tuple(range(2, 9)), 8)
    is_nvfp4 = is_float and bits == 4
    strategies = ("tensor_group",) if is_nvfp4 else ("tensor", "channel", "group", "block")
    group_size = weights.get("group_size")
    strategy = weights.choice("strategy", strategies, _strategy(group_size))
    if is_nvfp4 and group_size != NVFP4_GROUP:
        weights.refuse("group_size", f"only {NVFP4_GROUP} is supported for floating-point numbers of 4 bits")
    weights.refuse_unless("dynamic", False)
    targets = group.names("targets")
    for target in targets:
        try:
            re.compile(target)
        except (re.error, RecursionError, OverflowError):
            group.refuse("targets", "has a name that is no regular expression")
    inputs = group.part("input_activations")
    return _Scheme(
        targets=tuple(targets),
        bits=bits,
        is_float=is_float,
        symmetric=weights.flag("symmetric", True),
        group=weights.group_size() if strategy in ("group", "tensor_group") else None,
        block=weights.pair("block_structure") if strategy == "block" else None,
        static_inputs=inputs is not None and not inputs.get("dynamic"),
    )


def _strategy(group_size: object) -> str:
    if group_size is None:
        return "tensor"
    return "channel" if group_size == -1 else "group"


def _packed(parts: Parts, scheme: _Scheme) -> Description:
    """Describe a matrix of integers that are packed into 32-bit words: [out, in * bits / 32].

    Zero points are packed along the output features, or stored as int8 numbers.
    Raises ValueError for tensors whose shapes or dtypes do not fit together.
    """
    bits, middle = scheme.bits, 1 << (scheme.bits - 1)
    rows, words = parts.shape("weight_packed", 2)
    parts.check("weight_packed", (torch.int32,))
    parts.check("weight_shape", (torch.int64, torch.int32), (2,))
    out, width = parts.read("weight_shape").tolist()
    if (rows, words) != (out, -(-width * bits // 32)):
        raise ValueError(f"weight_packed is {[rows, words]}, which does not hold {[out, width]} codes of {bits} bits")
    group = scheme.group or width
    order = groups_of_inputs(parts, "weight_g_idx", width, group)
    blocks = _check_scales(parts, (out, width), scheme)
    groups = -(-width // group)
    if not scheme.symmetric:
        packed_shape = (-(-out * bits // 32), groups)
        packed_zeros = parts.dtype("weight_zero_point") == torch.int32
        parts.check("weight_zero_point", (torch.int32, torch.int8), packed_shape if packed_zeros else (out, groups))
    shared = group if order is None else 1

    def read() -> QuantizedMatrix:
        codes = unpack(parts.read("weight_packed"), bits, width)
        scales = scales_of_blocks(parts.read("weight_scale"), (out, width), blocks)
        minimums: Tensor | None = None
        if not scheme.symmetric:
            zeros = parts.read("weight_zero_point")
            if packed_zeros:
                minimums = scales * unpack(zeros.T.contiguous(), bits, out).T
            else:
                minimums = scales * (zeros.float() + middle)
            minimums = by_output(minimums.T, order)
        found = signed(codes, bits) if scheme.symmetric else codes
        return QuantizedMatrix(found, bits, shared, by_output(scales.T, order), minimums)

    symmetric = scheme.symmetric
    return layout((out, width), bits, shared, signed=symmetric, minimums=not symmetric), read


def _plain(parts: Parts, scheme: _Scheme) -> Description:
    """Describe a matrix of int8 numbers, one per weight, with zero points of the same shape as the scales.

    Raises ValueError for tensors whose shapes or dtypes do not fit together.
    """
    shape = parts.shape("weight", 2)
    parts.check("weight", (torch.int8,))
    rows, group = _check_scales(parts, shape, scheme), (scheme.block or (0, scheme.group or shape[1]))[1]
    if not scheme.symmetric:
        parts.check("weight_zero_point", (torch.int8,), parts.shape("weight_scale"))

    def read() -> QuantizedMatrix:
        scales = parts.read("weight_scale").float()
        minimums: Tensor | None = None
        if not scheme.symmetric:
            minimums = scales_of_blocks(scales * parts.read("weight_zero_point"), shape, rows)
        return QuantizedMatrix(
            parts.read("weight"), scheme.bits, group, scales_of_blocks(scales, shape, rows), minimums
        )

    return layout(shape, scheme.bits, group, signed=True, minimums=not scheme.symmetric), read


def _check_scales(parts: Parts, shape: tuple[int, ...], scheme: _Scheme) -> int:
    """Number of output features that share a scale. Raises ValueError for scales of another shape than the scheme's."""
    if scheme.group is not None:
        parts.check_floats("weight_scale", (shape[0], -(-shape[1] // scheme.group)))
        return 1
    return block_of(parts, "weight_scale", shape, scheme.block)[0]


def _role(name: str, tensor: StoredTensor) -> tuple[str, str] | None:
    found = part_of_module(name, _PARTS)
    is_float = found is not None and found[1] == "weight" and tensor.dtype not in (torch.int8, FP8)
    return None if is_float else found
