"""Hostile checkpoints with rounded weights: fp8, NVFP4, MXFP4, compressed-tensors and bitsandbytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.hostile.base import config
from tests.hostile.weight_cases import Case

_FP8 = torch.float8_e4m3fn
_NAME = "model.layers.{}.mlp.up_proj.weight"
_OUT, _IN = 32, 16


def _rounded(settings: Mapping[str, Any], parts: Callable[[], Mapping[str, Tensor]]) -> Case:
    """Two matrices of the checkpoint in other tensors. parts: these tensors, by what replaces `.weight` in the name."""

    def apply(directory: Path) -> None:
        config(quantization_config=dict(settings))(directory)
        tensors = load_file(directory / "model.safetensors")
        for layer in range(2):
            name = _NAME.format(layer)
            del tensors[name]
            tensors |= {name.removesuffix(".weight") + ending: tensor.clone() for ending, tensor in parts().items()}
        (directory / "model.safetensors").unlink()
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})

    return apply


def _fp8(scale: Tensor | None = None, codes: Tensor | None = None, **settings: Any) -> Case:
    def parts() -> dict[str, Tensor]:
        numbers = torch.ones(_OUT, _IN).to(_FP8) if codes is None else codes
        return {".weight": numbers, ".weight_scale_inv": torch.ones(1, 1) if scale is None else scale}

    return _rounded({"quant_method": "fp8", **settings}, parts)


def _nvfp4(factor: float = 1.0, scales: Tensor | None = None, columns: int = _IN // 2, **settings: Any) -> Case:
    def parts() -> dict[str, Tensor]:
        return {
            ".weight": torch.zeros(_OUT, columns, dtype=torch.uint8),
            ".weight_scale": torch.ones(_OUT, 1).to(_FP8) if scales is None else scales,
            ".weight_scale_2": torch.tensor(factor),
        }

    return _rounded({"quant_method": "modelopt", "quant_algo": "NVFP4", **settings}, parts)


def _compressed(weights: Mapping[str, Any], targets: Any = ("Linear",), **settings: Any) -> Case:
    """Matrices of int8 numbers of compressed-tensors."""
    group = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel", **weights}, "targets": targets}

    def parts() -> dict[str, Tensor]:
        return {".weight": torch.zeros(_OUT, _IN, dtype=torch.int8), ".weight_scale": torch.ones(_OUT, 1)}

    known = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": group}}
    return _rounded(known | settings, parts)


def _packed(shape: list[int], **weights: Any) -> Case:
    """Packed integers of 4 bits. shape: what the tensor with the shape says."""
    scheme = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, **weights}

    def parts() -> dict[str, Tensor]:
        return {
            ".weight_packed": torch.zeros(_OUT, 2, dtype=torch.int32),
            ".weight_scale": torch.ones(_OUT, 1),
            ".weight_shape": torch.tensor(shape),
        }

    known = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    return _rounded(known | {"config_groups": {"group_0": {"weights": scheme, "targets": ["Linear"]}}}, parts)


def _bits_and_bytes(state: Any, blocks: int = 8) -> Case:
    content = state if isinstance(state, bytes) else json.dumps(state).encode()

    def parts() -> dict[str, Tensor]:
        return {
            ".weight": torch.zeros(_OUT * _IN // 2, 1, dtype=torch.uint8),
            ".weight.absmax": torch.ones(blocks),
            ".weight.quant_map": torch.arange(16).float(),
            ".weight.quant_state.bitsandbytes__nf4": torch.tensor(list(content), dtype=torch.uint8),
        }

    return _rounded({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, parts)


_STATE = {"shape": [_OUT, _IN], "blocksize": 64, "quant_type": "nf4"}
_DEEP = "re:" + "(" * 5000 + ")" * 5000

ROUNDED: dict[str, Case] = {
    "fp8, blocks of 1e30": _fp8(weight_block_size=[10**30, 10**30]),
    "fp8, blocks of 0": _fp8(weight_block_size=[0, 128]),
    "fp8, three block sizes": _fp8(weight_block_size=[1, 2, 3]),
    "fp8, block sizes that are true": _fp8(weight_block_size=[True, True]),
    "fp8, fmt with escapes": _fp8(fmt="\x1b[2J" + "x" * 5000),
    "fp8, scales NaN": _fp8(torch.full((1, 1), float("nan"))),
    "fp8, scales infinite": _fp8(torch.full((_OUT, 1), float("inf"))),
    "fp8, scales that overflow": _fp8(torch.full((1, 1), 3e38), torch.full((_OUT, _IN), 448.0).to(_FP8)),
    "fp8, scales of another shape": _fp8(torch.ones(3, 5)),
    "fp8, scales that are integers": _fp8(torch.ones(1, 1).long()),
    "fp8, no scales": _fp8(torch.ones(0)),
    "fp8, numbers NaN": _fp8(codes=torch.full((_OUT, _IN), 0x7F, dtype=torch.uint8).view(_FP8)),
    "fp8, a vector": _fp8(codes=torch.ones(_OUT * _IN).to(_FP8)),
    "NVFP4, factor 0": _nvfp4(float("inf")),
    "NVFP4, factor NaN": _nvfp4(float("nan")),
    "NVFP4, scales NaN": _nvfp4(scales=torch.full((_OUT, 1), 0x7F, dtype=torch.uint8).view(_FP8)),
    "NVFP4, columns that fill no group": _nvfp4(columns=3),
    "NVFP4, group_size 1e30": _nvfp4(group_size=10**30),
    "NVFP4, algorithm is a list": _nvfp4(quant_algo=["NVFP4"]),
    "compressed-tensors, targets that nest": _compressed({}, targets=[_DEEP]),
    "compressed-tensors, targets that backtrack": _compressed({}, targets=["re:(([a-z._0-9]+)+)+!"]),
    "compressed-tensors, repetition 1e30": _compressed({}, targets=[f"re:a{{{10**30}}}"]),
    "compressed-tensors, 1,000,000 targets": _compressed({}, targets=["re:x"] * 1_000_000),
    "compressed-tensors, targets are a number": _compressed({}, targets=7),
    "compressed-tensors, num_bits 1e30": _compressed({"num_bits": 10**30}),
    "compressed-tensors, group_size 0": _compressed({"strategy": "group", "group_size": 0}),
    "compressed-tensors, group_size 1e30": _compressed({"strategy": "group", "group_size": 10**30}),
    "compressed-tensors, blocks of 1e30": _compressed({"strategy": "block", "block_structure": [10**30, 10**30]}),
    "compressed-tensors, groups are a list": _compressed({}, config_groups=[1]),
    "compressed-tensors, shape 2 ** 62": _packed([1 << 62, 1 << 62]),
    "compressed-tensors, shape below 0": _packed([-_OUT, -_IN]),
    "compressed-tensors, shape of 0": _packed([0, 0]),
    "bitsandbytes, shape 2 ** 62": _bits_and_bytes(_STATE | {"shape": [1 << 62, 1 << 62]}),
    "bitsandbytes, blocks of 1e30": _bits_and_bytes(_STATE | {"blocksize": 10**30}, blocks=1),
    "bitsandbytes, blocks of true": _bits_and_bytes(_STATE | {"blocksize": True}),
    "bitsandbytes, offset of 400 digits": _bits_and_bytes(_STATE | {"nested_offset": 10**400}),
    "bitsandbytes, offset NaN": _bits_and_bytes(_STATE | {"nested_offset": float("nan")}),
    "bitsandbytes, a state that nests": _bits_and_bytes(b"[" * 50_000),
    "bitsandbytes, a state that is no text": _bits_and_bytes(b"\xff" * 100),
}
VALID = (
    _fp8(),
    _fp8(weight_block_size=[128, 128]),
    _nvfp4(),
    _compressed({}),
    _packed([_OUT, _IN]),
    _bits_and_bytes(_STATE),
)
"""Checkpoints that load, so that a case is refused for its damage."""
