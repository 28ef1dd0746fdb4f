"""Write copies of a GGUF file whose tensors have other values or types."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from weights.gguf.container import read_gguf
from weights.quantized.gguf import stored_tensors
from weights.stored import StoredMatrix

DITHER_SEED = 39
"""Seed of the noise that `rewrite` adds. The checksum of a tensor's name is added to it."""

Encode = Callable[[str, Tensor], tuple[np.ndarray, gguf.GGMLQuantizationType]]
"""Function that encodes a matrix, given its name and float32 weights.

It returns the bytes, [..., bytes of a row], and their type."""


def matrices(file: Path) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and type of each matrix of a file."""
    for name, tensor in read_gguf(file).tensors.items():
        if len(tensor.shape) > 1:
            yield name, tensor.shape, tensor.type.name


def bits_per_weight(file: Path) -> float:
    """Mean number of bits per weight over all matrices of a GGUF file, including the token table and the head."""
    tensors = [tensor for tensor in read_gguf(file).tensors.values() if len(tensor.shape) > 1]
    return 8 * sum(tensor.nbytes for tensor in tensors) / sum(torch.Size(tensor.shape).numel() for tensor in tensors)


def as_float32(name: str, weights: Tensor) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """Encode a matrix as float32, without a change of its weights."""
    return weights.numpy(), gguf.GGMLQuantizationType.F32


def rewrite(source: Path, out: Path, encode: Encode, dither: bool = False) -> Path:
    """Write a copy of a GGUF file in which all matrices are encoded by `encode`. Returns `out`.

    Vectors and metadata stay the same.

    dither: whether to add uniform noise to each weight before `encode`, up to half a quantisation step of the source.
    """
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    partial = out.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(
            name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        )
    for name, stored in stored_tensors(read_gguf(source)).items():
        content = stored.read()
        if isinstance(stored, StoredMatrix):
            weights = content.dequantized(torch.float32)
            if dither:
                weights += _noise(name, weights.shape) * content.scales.repeat_interleave(content.group, 1)
        elif content.dim() > 1:
            weights = content.float()
        else:
            writer.add_tensor(name, content.float().numpy())
            continue
        encoded, kind = encode(name, weights)
        writer.add_tensor(name, np.ascontiguousarray(encoded), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(out)
    return out


def _noise(name: str, shape: torch.Size) -> Tensor:
    """Uniform noise from -0.5 to 0.5 for the tensor `name`, the same in every run."""
    generator = torch.Generator().manual_seed(DITHER_SEED + zlib.crc32(name.encode()))
    return torch.rand(shape, generator=generator) - 0.5
