"""Memory of a checkpoint's weights for each dtype and quantisation, computed without reading the weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from models.backends.choice import Quantization, QuantizationUnavailable
from models.checkpoint.checkpoint_heads import read_files, read_heads
from models.checkpoint.load_heads import load_token_heads
from models.checkpoint.pack_weights import WeightPacker
from models.transformer import Transformer
from weights.gguf.choose import is_gguf
from weights.quantized.formats import is_quantized

CPU = torch.device("cpu")


class _NoMemory:
    """Stands for the memory of a model that is built with shapes only. Implements `TensorMemory`."""

    is_filled = True

    def keep(self, tensor: Tensor) -> Tensor:
        return tensor


def setting_sizes(directory: Path, dtype: torch.dtype) -> Mapping[str, int]:
    """Bytes of the weights on a CPU, by setting: float32, bfloat16, and each quantisation.

    A setting that the model or the dtype does not support is absent. So are float32 and bfloat16 for a checkpoint that
    is stored quantised.
    directory: directory of a checkpoint, or its GGUF file. dtype: dtype of the model where a quantisation is set.
    """
    files = read_files(directory)
    config = files.config()
    heads = load_token_heads(directory, read_heads(files, config, False), CPU)
    others = sum(parameter.nbytes for parameter in heads.parameters())
    settings: dict[str, tuple[torch.dtype, Quantization | None]] = {}
    if not (is_gguf(directory) or is_quantized(files.hf)):
        settings = {"float32": (torch.float32, None), "bfloat16": (torch.bfloat16, None)}
    settings |= {quantization: (dtype, quantization) for quantization in get_args(Quantization)}
    found = {}
    for name, (kind, quantization) in settings.items():
        with torch.device("meta"):
            transformer = Transformer(config).to(kind)
        try:
            packer = WeightPacker(transformer, kind, CPU, quantization, _NoMemory())
        except QuantizationUnavailable:
            continue
        found[name] = packer.finish() + others
    return found
