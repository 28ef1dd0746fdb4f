"""Reads matrices of quantised checkpoints from tensors, and compares their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from weights.quantized.formats import quantized_format
from weights.stored import StoredMatrix, StoredTensor

OUT, WIDTH = 96, 128
MODULE = "model.layers.3.mlp.up_proj"
NF4_CONFIG = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def stored(tensors: Mapping[str, Tensor], module: str = MODULE) -> dict[str, StoredTensor]:
    return {
        f"{module}.{name}": StoredTensor(tuple(tensor.shape), tensor.dtype, "model.safetensors", tensor.detach)
        for name, tensor in tensors.items()
    }


def matrix(config: dict[str, Any], tensors: Mapping[str, Tensor]) -> StoredMatrix:
    quantized = quantized_format({"quantization_config": config})
    assert quantized is not None
    found = quantized.matrices(stored(tensors))
    assert list(found) == [f"{MODULE}.weight"]
    result = found[f"{MODULE}.weight"]
    assert isinstance(result, StoredMatrix)
    return result


def assert_weights(config: dict[str, Any], tensors: Mapping[str, Tensor], expected: Tensor) -> StoredMatrix:
    found = matrix(config, tensors)
    assert tuple(found.layout.shape) == tuple(expected.shape) and found.layout.is_meta
    assert found.nbytes == sum(tensor.nbytes for tensor in tensors.values())
    read = found.read()
    torch.testing.assert_close(read.dequantized(torch.float64), expected, rtol=3e-7, atol=1e-9)
    return found
