"""Quantise the linear layers of tiny checkpoints with the functions of `tests.weights.quantized_recipes`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.parity.checkpoints import edit_config
from tests.weights import quantized_recipes as recipes

Recipe = Callable[[int, int, int], recipes.Stored]
"""A function from (number of outputs, number of inputs, seed) to a random quantised layer."""

INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
_PACKED = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
_FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}


def _compressed(weights: Mapping[str, Any], name: str, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": dict(weights), "input_activations": inputs, "format": name}
    return {"quant_method": "compressed-tensors", "format": name, "config_groups": {"group_0": group}, "ignore": []}


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
_DYNAMIC = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
FORMATS: dict[str, tuple[dict[str, Any], Recipe]] = {
    "gptq": (_GPTQ, lambda out, width, seed: recipes.gptq(out, width, seed=seed)),
    "gptq-act-order": (
        {**_GPTQ, "desc_act": True, "sym": False},
        lambda out, width, seed: recipes.gptq(out, width, symmetric=False, act_order=True, seed=seed),
    ),
    "gptq-8-bits": (
        {**_GPTQ, "bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"},
        lambda out, width, seed: recipes.gptq(out, width, 8, width, version=2, seed=seed),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
        lambda out, width, seed: recipes.awq(out, width, seed=seed),
    ),
    "compressed-int4": (
        _compressed(_PACKED, "pack-quantized"),
        lambda out, width, seed: recipes.compressed(out, width, _PACKED, "pack-quantized", seed),
    ),
    "compressed-int8": (
        _compressed(INT8, "int-quantized", _DYNAMIC),
        lambda out, width, seed: recipes.compressed(out, width, INT8, "int-quantized", seed),
    ),
    "compressed-fp8": (
        _compressed(_FP8, "float-quantized"),
        lambda out, width, seed: recipes.compressed(out, width, _FP8, "float-quantized", seed),
    ),
    "bitsandbytes-nf4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        lambda out, width, seed: recipes.nested_nf4(out, width, seed=seed),
    ),
    "bitsandbytes-int8": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        lambda out, width, seed: recipes.llm_int8(out, width, seed=seed),
    ),
    "modelopt-nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        lambda out, width, seed: recipes.nvfp4(out, width, seed=seed),
    ),
    "fp8": (
        {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"},
        lambda out, width, seed: recipes.fp8(out, width, (32, 32), seed=seed),
    ),
}
KERNEL_FORMATS = ("gptq", "gptq-8-bits", "awq", "compressed-int4", "compressed-int8", "bitsandbytes-int8")
"""Formats for which the kernels read the stored weights, without a conversion of the weights at load."""


def quantize(source: Path, name: str, target: Path, linear: Callable[[str], bool]) -> tuple[Path, Path]:
    """Write a checkpoint with quantised layers, and one with the values of these layers in float32.

    source: directory of the original checkpoint. name: key of `FORMATS`. target: directory for the two checkpoints.
    linear: whether the module with this name is quantised. All other tensors are copied.
    Returns the directories of the quantised checkpoint and of the float32 checkpoint.
    """
    config, recipe = FORMATS[name]
    stored, plain = {}, {}
    for seed, (tensor_name, tensor) in enumerate(load_file(source / "model.safetensors").items()):
        module = tensor_name.removesuffix(".weight")
        if tensor_name.endswith(".weight") and tensor.dim() == 2 and linear(module):
            parts, weights = recipe(tensor.shape[0], tensor.shape[1], seed)
            stored |= {f"{module}.{ending}": part for ending, part in parts.items()}
            plain[tensor_name] = weights.float()
        else:
            stored[tensor_name], plain[tensor_name] = tensor, tensor
    directories = []
    for kind, tensors in (("quantized", stored), ("plain", plain)):
        directory = target / kind
        shutil.copytree(source, directory)
        save(directory, tensors)
        directories.append(directory)
    edit_config(directories[0], quantization_config=config)
    return directories[0], directories[1]


def save(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the weights of a checkpoint."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, directory / "model.safetensors", {"format": "pt"})


def changed(directory: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Change the saved tensors of a checkpoint in place."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save(directory, tensors)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Root mean square error of logits, divided by the standard deviation of the expected ones."""
    return float((found - expected).square().mean().sqrt() / expected.std())
