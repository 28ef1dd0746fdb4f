"""Read the tensors of GGUF files: floats, and quantised matrices of the block types of ggml.

Each block of a row is decoded to codes, scales and minimums. Scales are stored as float16, and all arithmetic is in
float32, as in ggml's reference code. Source: `dequantize_row_*` in `ggml-quants.c` of https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from weights.gguf.container import Gguf, GgufTensor
from weights.gguf.types import BlockType
from weights.quantized.gguf_blocks import bit_of_each, half, joined, shifted, signed, two_levels
from weights.quantized.gguf_codebooks import CODEBOOK_DECODERS
from weights.quantized.mxfp4 import DOUBLED
from weights.quantized_matrix import QuantizedMatrix
from weights.stored import Stored, StoredMatrix, StoredTensor

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_IQ4_VALUES = torch.tensor(
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0]
)

_HALF_POWERS = torch.tensor([math.ldexp(0.5, exponent - 127) for exponent in range(256)])
"""Half of the scale that each exponent byte (E8M0) represents. The table of codes has twice the values."""
_HALF_E4M3 = torch.tensor(
    [math.ldexp(code % 8 + (8 if code & 120 else 0), max(code >> 3 & 15, 1) - 11) for code in range(256)]
)
"""Half of the scale that each byte (E4M3 without its sign) represents. The table of codes has twice the values."""
_HALF_E4M3[127] = 0.0  # NaN in other formats


class GgufFormat:
    """The format of a GGUF file's quantised matrices. Implements `QuantizedFormat`.

    description: text for users with the tensor types in the file.
    """

    unused = ""

    def __init__(self, gguf: Gguf) -> None:
        kinds = dict.fromkeys(tensor.type.name for tensor in gguf.tensors.values() if len(tensor.shape) > 1)
        self.description = f"GGUF {', '.join(sorted(kinds))}"

    def matrices(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Stored]:
        """Return `stored` unchanged, because each quantised matrix is one tensor in the file."""
        return stored


def stored_tensors(gguf: Gguf) -> Mapping[str, Stored]:
    """The tensors and quantised matrices of a model, by their names in the file."""
    tensors = {name: _stored(tensor) for name, tensor in gguf.tensors.items()}
    return {**tensors, **_numbers_of_activations(gguf)}


def _numbers_of_activations(gguf: Gguf) -> Mapping[str, Stored]:
    """The learned parameters of the activation xIELU (Apertus) as tensors; the file has them in the metadata."""
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
    """The matrix on the meta device, with the shapes and dtypes that decoding would give.

    They are derived from one decoded block of zeros.
    """
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

    content: the bytes of all blocks, uint8.
    shape: shape of the weights, [..., in]. All dimensions before the inputs, such as experts, are kept.
    """
    blocks = content.reshape(*shape[:-1], shape[-1] // block.weights, block.nbytes)
    return _DECODERS[block.name](blocks)


# ------------------------------------------------------------------------------------------------------- block types
# A decoder takes blocks of bytes [..., blocks, bytes], where the blocks lie along the inputs.


def _q4_0(blocks: Tensor) -> QuantizedMatrix:
    codes = signed(shifted(blocks[..., 2:], 4, 16), 8)
    return QuantizedMatrix(joined(codes), 4, 32, joined(half(blocks, 0)))


def _q4_1(blocks: Tensor) -> QuantizedMatrix:
    codes = shifted(blocks[..., 4:], 4, 16)
    return QuantizedMatrix(joined(codes), 4, 32, joined(half(blocks, 0)), -joined(half(blocks, 2)))


def _q5_0(blocks: Tensor) -> QuantizedMatrix:
    codes = shifted(blocks[..., 6:], 4, 16) | bit_of_each(blocks[..., 2:6]) << 4
    return QuantizedMatrix(joined(signed(codes, 16)), 5, 32, joined(half(blocks, 0)))


def _q5_1(blocks: Tensor) -> QuantizedMatrix:
    codes = shifted(blocks[..., 8:], 4, 16) | bit_of_each(blocks[..., 4:8]) << 4
    return QuantizedMatrix(joined(codes), 5, 32, joined(half(blocks, 0)), -joined(half(blocks, 2)))


def _q8_0(blocks: Tensor) -> QuantizedMatrix:
    codes = blocks[..., 2:].contiguous().view(torch.int8)
    return QuantizedMatrix(joined(codes), 8, 32, joined(half(blocks, 0)))


def _q2_k(blocks: Tensor) -> QuantizedMatrix:
    scales, codes = blocks[..., :16], shifted(blocks[..., 16:80], 2, 32)
    return two_levels(codes, 2, 16, half(blocks, 80), scales & 15, half(blocks, 82), scales >> 4)


def _q3_k(blocks: Tensor) -> QuantizedMatrix:
    high, low = blocks[..., :32], blocks[..., 32:96]
    # A set bit of the mask means that 4 is not subtracted.
    subtracted = torch.stack([high >> shift & 1 for shift in range(8)], dim=-2).flatten(-2) ^ 1
    codes = shifted(low, 2, 32).view(torch.int8) - (subtracted << 2).view(torch.int8)
    packed = blocks[..., 96:108]
    scales = shifted(packed[..., :8], 4, 8) | shifted(packed[..., 8:], 2, 4) << 4
    return two_levels(codes, 3, 16, half(blocks, 108), signed(scales, 32))


def _six_bit_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack eight scales and eight minimums of six bits each from twelve bytes: [..., 12] to two [..., 8], uint8."""
    first, second, third = torch.split(packed, 4, dim=-1)
    scales = torch.cat([first & 63, third & 15 | first >> 2 & 48], dim=-1)
    return scales, torch.cat([second & 63, third >> 4 | second >> 2 & 48], dim=-1)


def _q4_k(blocks: Tensor) -> QuantizedMatrix:
    scales, minimums = _six_bit_scales(blocks[..., 4:16])
    codes = shifted(blocks[..., 16:], 4, 32)
    return two_levels(codes, 4, 32, half(blocks, 0), scales, half(blocks, 2), minimums)


def _q5_k(blocks: Tensor) -> QuantizedMatrix:
    scales, minimums = _six_bit_scales(blocks[..., 4:16])
    codes = shifted(blocks[..., 48:], 4, 32) | shifted(blocks[..., 16:48], 1, 32) << 4
    return two_levels(codes, 5, 32, half(blocks, 0), scales, half(blocks, 2), minimums)


def _q6_k(blocks: Tensor) -> QuantizedMatrix:
    codes = shifted(blocks[..., :128], 4, 64) | shifted(blocks[..., 128:192], 2, 32) << 4
    scales = blocks[..., 192:208].contiguous().view(torch.int8)
    return two_levels(signed(codes, 32), 6, 16, half(blocks, 208), scales)


def _iq4_nl(blocks: Tensor) -> QuantizedMatrix:
    codes = shifted(blocks[..., 2:], 4, 16)
    return QuantizedMatrix(joined(codes), 4, 32, joined(half(blocks, 0)), table=_IQ4_VALUES)


def _iq4_xs(blocks: Tensor) -> QuantizedMatrix:
    low, shifts = blocks[..., 4:8], torch.tensor((0, 2, 4, 6), dtype=torch.uint8)
    high = (blocks[..., 2:4, None] >> shifts & 3).flatten(-2)
    scales = torch.stack([low & 15, low >> 4], dim=-1).flatten(-2) | high << 4
    codes = shifted(blocks[..., 8:], 4, 16)
    return two_levels(codes, 4, 32, half(blocks, 0), signed(scales, 32), table=_IQ4_VALUES)


def _tq1_0(blocks: Tensor) -> QuantizedMatrix:
    """Decode TQ1_0 blocks, whose weights are -1, 0 or 1.

    A byte stores five weights, and each of the last four bytes of a block four. The byte, divided by 256, is a fraction
    whose digits in base three are the weights plus 1.
    """
    powers = torch.tensor((1, 3, 9, 27, 81), dtype=torch.uint8)
    parts = (blocks[..., :32], 5), (blocks[..., 32:48], 5), (blocks[..., 48:52], 4)
    digits = [(part[..., None, :] * powers[:count, None]).flatten(-2) for part, count in parts]
    codes = (torch.cat(digits, dim=-1).int() * 3 >> 8).to(torch.uint8)
    return _ternary(codes, half(blocks, 52))


def _tq2_0(blocks: Tensor) -> QuantizedMatrix:
    return _ternary(shifted(blocks[..., :64], 2, 32), half(blocks, 64))


def _ternary(codes: Tensor, unit: Tensor) -> QuantizedMatrix:
    """A matrix of -1, 0 and 1 with the scale `unit` per block. codes: the values plus 1."""
    return two_levels(signed(codes, 1), 2, 256, unit, torch.ones_like(unit))


def _mxfp4(blocks: Tensor) -> QuantizedMatrix:
    codes = shifted(blocks[..., 1:], 4, 16)
    return QuantizedMatrix(joined(codes), 4, 32, _HALF_POWERS[joined(blocks[..., :1]).int()], table=DOUBLED)


def _nvfp4(blocks: Tensor) -> QuantizedMatrix:
    codes = shifted(blocks[..., 4:], 4, 8)
    return QuantizedMatrix(joined(codes), 4, 16, _HALF_E4M3[joined(blocks[..., :4]).int()], table=DOUBLED)


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
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    **CODEBOOK_DECODERS,
}
