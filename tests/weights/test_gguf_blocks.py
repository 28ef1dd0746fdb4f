"""Every block type of GGUF is decoded to the same float32 bits as with the `gguf` package."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weights.gguf.types import TYPES
from weights.quantized.gguf import decode_blocks
from weights.quantized_matrix import QuantizedMatrix

gguf = pytest.importorskip("gguf")
QUANTIZED = {kind: block for kind, block in TYPES.items() if block.weights > 1}


def random_blocks(name: str, rows: int, inputs: int, seed: int = 0, largest: float = 0.05) -> np.ndarray:
    """Rows of random blocks: any bytes are a valid block, except that float16 scales are at most `largest`."""
    block = next(block for block in TYPES.values() if block.name == name)
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows, inputs // block.weights, block.nbytes), dtype=np.uint8)
    for start in SCALES[name]:
        scale = generator.uniform(-largest, largest, blocks.shape[:2]).astype(np.float16)
        blocks[..., start : start + 2] = scale[..., None].view(np.uint8)
    if name == "IQ1_M":  # the exponent of its float16 is in half of its last two bytes, and made small here
        blocks[..., 53] &= 0x0F
        blocks[..., 55] = blocks[..., 55] & 0x8F | 0x20
    return blocks.reshape(rows, -1)


SCALES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"), (0,)),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    **dict.fromkeys(("MXFP4", "NVFP4", "IQ1_M"), ()),
}
"""Offsets in bytes of the float16 scales in a block."""
SPANS = {"TQ1_0": 2, "IQ2_XS": 86, "IQ2_S": 86, "IQ1_S": 5, "IQ1_M": 18}
"""Difference of the largest and the smallest code, for types that do not use all codes that their bits allow."""


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: TYPES[kind].name)
def test_a_block_type_has_the_size_and_the_weights_of_the_reference(kind: int) -> None:
    block, theirs = TYPES[kind], gguf.GGMLQuantizationType(kind)
    assert (block.name, gguf.GGML_QUANT_SIZES[theirs]) == (theirs.name, (block.weights, block.nbytes))
    data = random_blocks(block.name, 5, 1024)
    matrix = decode_blocks(block, torch.from_numpy(data), (5, 1024))
    assert matrix.shape == (5, 1024)
    with np.errstate(over="ignore"):
        expected = gguf.quants.dequantize(data, theirs)
    assert matrix.dequantized(torch.float32).numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: TYPES[kind].name)
def test_two_levels_of_scales_are_integers_times_their_units(kind: int) -> None:
    matrix = decode_blocks(TYPES[kind], torch.from_numpy(random_blocks(TYPES[kind].name, 3, 512)), (3, 512))
    if matrix.units is None:
        assert TYPES[kind].weights in (32, 64)
        return
    per_block = TYPES[kind].weights // matrix.group
    for level, numbers in enumerate((matrix.scales, matrix.minimums)):
        if numbers is not None:
            integers = numbers.unflatten(1, (-1, per_block)) / matrix.units[..., level, None]
            assert (integers - integers.round()).abs().max() < 1e-4 and integers.abs().max() < 129


def test_codes_use_only_their_bits() -> None:
    for block in QUANTIZED.values():
        matrix = decode_blocks(block, torch.from_numpy(random_blocks(block.name, 4, 512)), (4, 512))
        codes = matrix.codes.int()
        assert int(codes.max() - codes.min()) == SPANS.get(block.name, (1 << matrix.bits) - 1), block.name


def test_experts_before_the_rows_stay() -> None:
    block = next(block for block in TYPES.values() if block.name == "Q4_K")
    data = random_blocks("Q4_K", 6, 256)
    matrix = decode_blocks(block, torch.from_numpy(data), (3, 2, 256))
    flat = decode_blocks(block, torch.from_numpy(data), (6, 256))
    assert isinstance(matrix, QuantizedMatrix) and matrix.shape == (3, 2, 256)
    joined = matrix.flatten(0, 1)
    assert isinstance(joined, QuantizedMatrix) and joined.equal(flat)
