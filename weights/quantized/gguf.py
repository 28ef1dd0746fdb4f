"""Tensors of GGUF files: floats, and quantised matrices of the block types of ggml.

Each block of a row becomes codes, scales and minimums, in the arithmetic of ggml's reference: float32, from scales in
float16. Source: `dequantize_row_*` in `ggml-quants.c` of https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from weights.gguf.container import Gguf, GgufTensor
from weights.gguf.types import BlockType
from weights.quantized_matrix import QuantizedMatrix
from weights.stored import Stored, StoredMatrix, StoredTensor

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_IQ4_VALUES = torch.tensor(
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0]
)


class GgufFormat:
    """The quantised matrices of a GGUF file. Implements `QuantizedFormat`.

    description: the block types of the file.
    """

    unused = ""

    def __init__(self, gguf: Gguf) -> None:
        kinds = dict.fromkeys(tensor.type.name for tensor in gguf.tensors.values() if len(tensor.shape) > 1)
        self.description = f"GGUF {', '.join(sorted(kinds))}"

    def matrices(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Stored]:
        """The unchanged tensors: each is a matrix already."""
        return stored


def stored_tensors(gguf: Gguf) -> Mapping[str, Stored]:
    """The tensors of a model by their names in the file."""
    tensors = {name: _stored(tensor) for name, tensor in gguf.tensors.items()}
    return {**tensors, **_numbers_of_activations(gguf)}


def _numbers_of_activations(gguf: Gguf) -> Mapping[str, Stored]:
    """The learned numbers of the activation xIELU, which the metadata has for each layer (Apertus)."""
    return {
        f"blk.{layer}.{key}": _number(gguf.name, value)
        for key in ("xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps")
        for layer, value in enumerate(gguf.get(key) or ())
    }


def _number(file: str, value: float) -> Stored:
    return StoredTensor((1,), torch.float32, file, lambda: torch.tensor([value]))


def _stored(tensor: GgufTensor) -> Stored:
    dtype = _FLOATS.get(tensor.type.name)
    if dtype is not None:
        return StoredTensor(
            tensor.shape, dtype, tensor.file.name, lambda: _bytes(tensor).view(dtype).view(tensor.shape)
        )

    def describe() -> tuple[QuantizedMatrix, Callable[[], QuantizedMatrix]]:
        return _layout(tensor), lambda: decode_blocks(tensor.type, _bytes(tensor), tensor.shape)

    return StoredMatrix(tensor.file.name, tensor.nbytes, describe)


def _layout(tensor: GgufTensor) -> QuantizedMatrix:
    """The matrix on the meta device. Each block has the layout of a block of zeros."""
    one = decode_blocks(tensor.type, torch.zeros(tensor.type.nbytes, dtype=torch.uint8), (1, tensor.type.weights))
    rows, blocks = tensor.shape[:-1], tensor.shape[-1] // tensor.type.weights

    def repeated(part: Tensor) -> Tensor:
        return torch.empty((*rows, blocks * part.shape[1], *part.shape[2:]), dtype=part.dtype, device="meta")

    minimums, units = (None if part is None else repeated(part) for part in (one.minimums, one.units))
    return QuantizedMatrix(repeated(one.codes), one.bits, one.group, repeated(one.scales), minimums, one.table, units)


def _bytes(tensor: GgufTensor) -> Tensor:
    # torch warns that the buffer is not writable; nobody writes to it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.frombuffer(tensor.data(), dtype=torch.uint8)


def decode_blocks(block: BlockType, content: Tensor, shape: Sequence[int]) -> QuantizedMatrix:
    """Decode the bytes of a quantised tensor.

    content: all blocks, uint8. shape: shape of the weights. Further dimensions before the inputs, such as experts, are
        kept.
    """
    blocks = content.reshape(*shape[:-1], shape[-1] // block.weights, block.nbytes)
    return _DECODERS[block.name](blocks)


# ------------------------------------------------------------------------------------------------------- block types
# A decoder takes blocks of bytes [..., blocks, bytes], where the blocks lie along the inputs.


def _half(blocks: Tensor, start: int) -> Tensor:
    """A float16 in each block, as float32: [..., blocks, 1]."""
    return blocks[..., start : start + 2].contiguous().view(torch.float16).float()


def _shifted(packed: Tensor, bits: int, run: int) -> Tensor:
    """Unpack codes that lie in runs: each run of bytes has the low bits of the first codes, then the next bits.

    packed: [..., bytes]. bits: bits of a code. run: bytes of a run.
    Returns [..., 8 / bits * bytes], uint8.
    """
    runs = packed.reshape(*packed.shape[:-1], -1, run)
    parts = [runs >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return torch.stack(parts, dim=-2).flatten(-3)


def _bit_of_each(packed: Tensor) -> Tensor:
    """The 32 bits of four bytes, lowest first: [..., 4] -> [..., 32], uint8."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (packed[..., None] >> shifts & 1).flatten(-2)


def _joined(of_blocks: Tensor) -> Tensor:
    """Join the last two dimensions, blocks and numbers per block, to one along the inputs."""
    return of_blocks.flatten(-2)


def _signed(codes: Tensor, zero: int) -> Tensor:
    """Codes whose value is their difference to `zero`, as int8."""
    return codes.view(torch.int8) - zero


def _q4_0(blocks: Tensor) -> QuantizedMatrix:
    codes = _signed(_shifted(blocks[..., 2:], 4, 16), 8)
    return QuantizedMatrix(_joined(codes), 4, 32, _joined(_half(blocks, 0)))


def _q4_1(blocks: Tensor) -> QuantizedMatrix:
    codes = _shifted(blocks[..., 4:], 4, 16)
    return QuantizedMatrix(_joined(codes), 4, 32, _joined(_half(blocks, 0)), -_joined(_half(blocks, 2)))


def _q5_0(blocks: Tensor) -> QuantizedMatrix:
    codes = _shifted(blocks[..., 6:], 4, 16) | _bit_of_each(blocks[..., 2:6]) << 4
    return QuantizedMatrix(_joined(_signed(codes, 16)), 5, 32, _joined(_half(blocks, 0)))


def _q5_1(blocks: Tensor) -> QuantizedMatrix:
    codes = _shifted(blocks[..., 8:], 4, 16) | _bit_of_each(blocks[..., 4:8]) << 4
    return QuantizedMatrix(_joined(codes), 5, 32, _joined(_half(blocks, 0)), -_joined(_half(blocks, 2)))


def _q8_0(blocks: Tensor) -> QuantizedMatrix:
    codes = blocks[..., 2:].contiguous().view(torch.int8)
    return QuantizedMatrix(_joined(codes), 8, 32, _joined(_half(blocks, 0)))


def _q2_k(blocks: Tensor) -> QuantizedMatrix:
    scales, codes = blocks[..., :16], _shifted(blocks[..., 16:80], 2, 32)
    return _two_levels(codes, 2, 16, _half(blocks, 80), scales & 15, _half(blocks, 82), scales >> 4)


def _q3_k(blocks: Tensor) -> QuantizedMatrix:
    high, low = blocks[..., :32], blocks[..., 32:96]
    # A set bit of the mask means that 4 is not subtracted.
    subtracted = torch.stack([high >> shift & 1 for shift in range(8)], dim=-2).flatten(-2) ^ 1
    codes = _shifted(low, 2, 32).view(torch.int8) - (subtracted << 2).view(torch.int8)
    packed = blocks[..., 96:108]
    scales = _shifted(packed[..., :8], 4, 8) | _shifted(packed[..., 8:], 2, 4) << 4
    return _two_levels(codes, 3, 16, _half(blocks, 108), _signed(scales, 32))


def _six_bit_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minimums of six bits in twelve bytes: [..., 12] -> two [..., 8], uint8."""
    first, second, third = torch.split(packed, 4, dim=-1)
    scales = torch.cat([first & 63, third & 15 | first >> 2 & 48], dim=-1)
    return scales, torch.cat([second & 63, third >> 4 | second >> 2 & 48], dim=-1)


def _q4_k(blocks: Tensor) -> QuantizedMatrix:
    scales, minimums = _six_bit_scales(blocks[..., 4:16])
    codes = _shifted(blocks[..., 16:], 4, 32)
    return _two_levels(codes, 4, 32, _half(blocks, 0), scales, _half(blocks, 2), minimums)


def _q5_k(blocks: Tensor) -> QuantizedMatrix:
    scales, minimums = _six_bit_scales(blocks[..., 4:16])
    codes = _shifted(blocks[..., 48:], 4, 32) | _shifted(blocks[..., 16:48], 1, 32) << 4
    return _two_levels(codes, 5, 32, _half(blocks, 0), scales, _half(blocks, 2), minimums)


def _q6_k(blocks: Tensor) -> QuantizedMatrix:
    codes = _shifted(blocks[..., :128], 4, 64) | _shifted(blocks[..., 128:192], 2, 32) << 4
    scales = blocks[..., 192:208].contiguous().view(torch.int8)
    return _two_levels(_signed(codes, 32), 6, 16, _half(blocks, 208), scales)


def _iq4_nl(blocks: Tensor) -> QuantizedMatrix:
    codes = _shifted(blocks[..., 2:], 4, 16)
    return QuantizedMatrix(_joined(codes), 4, 32, _joined(_half(blocks, 0)), table=_IQ4_VALUES)


def _iq4_xs(blocks: Tensor) -> QuantizedMatrix:
    low, shifts = blocks[..., 4:8], torch.tensor((0, 2, 4, 6), dtype=torch.uint8)
    high = (blocks[..., 2:4, None] >> shifts & 3).flatten(-2)
    scales = torch.stack([low & 15, low >> 4], dim=-1).flatten(-2) | high << 4
    codes = _shifted(blocks[..., 8:], 4, 16)
    return _two_levels(codes, 4, 32, _half(blocks, 0), _signed(scales, 32), table=_IQ4_VALUES)


def _two_levels(
    codes: Tensor,
    bits: int,
    group: int,
    unit: Tensor,
    scales: Tensor,
    minimum_unit: Tensor | None = None,
    minimums: Tensor | None = None,
    table: Tensor | None = None,
) -> QuantizedMatrix:
    """A matrix whose scales and minimums are integers times a unit per block.

    All tensors but the table: [..., blocks, n].
    """
    units = unit if minimum_unit is None else torch.cat([unit, minimum_unit], dim=-1)
    products = None if minimums is None or minimum_unit is None else _joined(minimum_unit * minimums)
    return QuantizedMatrix(_joined(codes), bits, group, _joined(unit * scales), products, table, units)


_DECODERS: Mapping[str, Callable[[Tensor], QuantizedMatrix]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
