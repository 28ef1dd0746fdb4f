"""Weights with one scale per group of inputs, in every format, with every instruction set of the processor.

Products equal float64 arithmetic with dequantised weights and rounded activations. A row has the same bits for every
number of rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from models.backends.cpu.group_weight import GroupWeight, fits
from models.backends.linear_weights import int4_group
from models.backends.tensor_memory import PRIVATE
from models.backends.torch.quantization import quantize_int4, quantize_int6
from models.backends.torch.two_levels import quantize_two_levels
from tests.models.group_reference import reference
from tests.models.test_cpu_linear import close
from tests.weights.test_gguf_blocks import random_blocks
from weights.gguf.types import TYPES
from weights.quantized.gguf import decode_blocks
from weights.quantized_matrix import QuantizedMatrix

pytestmark = pytest.mark.usefixtures("kernels")


def flat(columns, width, bits=4, group=32, minimum=None, is_half=True, signed=True):
    """A random quantised matrix with independent scales.

    minimum: kind of the minimums: None, `zero` (integer zero points), or `half` (float16 values).
    is_half: whether scales are float16 values. signed: whether codes are signed.
    """
    groups = -(-width // group)
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
    codes = torch.randint(low, high, (columns, width)).to(torch.int8 if signed else torch.uint8)
    scales = torch.rand(columns, groups) / width**0.5 / (1 << bits)
    scales = scales.half().float() if is_half else scales
    minimums = None
    if minimum == "zero":
        minimums = scales * torch.randint(0, 1 << bits, scales.shape)
    elif minimum == "half":
        minimums = (torch.rand(columns, groups) / width**0.5).half().float()
    return QuantizedMatrix(codes, bits, group, scales, minimums)


def in_units(columns, width, bits, group, with_minimums, block=256):
    """A random matrix in a K format: scales and minimums are small integers times a unit per block of 256 inputs."""
    matrix = flat(columns, width, bits, group, signed=not with_minimums)
    units = (torch.rand(columns, width // block, 1 + with_minimums) / width**0.5 / (1 << bits) / 32).half().float()
    low = 0 if with_minimums else -32
    numbers = torch.randint(low, 64, (1 + with_minimums, columns, width // block, block // group))
    scales, *minimums = (number * units[:, :, place, None] for place, number in enumerate(numbers))
    return replace(
        matrix, scales=scales.flatten(1), minimums=minimums[0].flatten(1) if with_minimums else None, units=units
    )


def symmetric_with_zero_points(columns, width):
    """A random symmetric matrix as GPTQ writes it: unsigned codes, and the zero point 8 in all groups."""
    matrix = flat(columns, width, group=128, signed=False)
    return replace(matrix, minimums=matrix.scales * 8)


def with_table(matrix, table):
    """Copy a matrix with codes of four bits that are indices of values in `table`."""
    return replace(matrix, codes=matrix.codes & 15, table=torch.tensor(table, dtype=torch.float32))


E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def iq4_xs(columns, width):
    matrix = in_units(columns, width, 8, 32, False)
    return with_table(replace(matrix, codes=(matrix.codes & 15).to(torch.uint8), bits=4), IQ4)


def of_gguf(name, columns, width):
    """A matrix of random blocks in the GGUF type `name`."""
    block = next(block for block in TYPES.values() if block.name == name)
    return decode_blocks(block, torch.from_numpy(random_blocks(name, columns, width, largest=0.001)), (columns, width))


FORMATS = {
    "int4": lambda columns, width: quantize_int4(torch.randn(columns, width) * width**-0.5),
    "int6": lambda columns, width: quantize_int6(torch.randn(columns, width) * width**-0.5),
    "int4 with zero points": lambda columns, width: quantize_int4(torch.randn(columns, width) * width**-0.5, 64, True),
    "two levels_K": lambda columns, width: quantize_two_levels(torch.randn(columns, width) * width**-0.5),
    "Q4_1": lambda columns, width: flat(columns, width, minimum="half", signed=False),
    "Q5_0": lambda columns, width: flat(columns, width, bits=5),
    "Q5_1": lambda columns, width: flat(columns, width, bits=5, minimum="half", signed=False),
    "Q8_0": lambda columns, width: flat(columns, width, bits=8),
    "Q2_K": lambda columns, width: in_units(columns, width, 2, 16, True),
    "Q3_K": lambda columns, width: in_units(columns, width, 3, 16, False),
    "Q4_K": lambda columns, width: in_units(columns, width, 4, 32, True),
    "Q5_K": lambda columns, width: in_units(columns, width, 5, 32, True),
    "Q6_K": lambda columns, width: in_units(columns, width, 6, 16, False),
    "GPTQ": lambda columns, width: flat(columns, width, group=128, minimum="zero", signed=False),
    "symmetric GPTQ": symmetric_with_zero_points,
    "group 64": lambda columns, width: flat(columns, width, group=64),
    "group 16": lambda columns, width: flat(columns, width, group=16),
    "channels": lambda columns, width: flat(columns, width, bits=8, group=width),
    "float32 scales": lambda columns, width: flat(columns, width, is_half=False),
    "float32 minimums": lambda columns, width: flat(columns, width, minimum="half", is_half=False, signed=False),
    "signed with minimums": lambda columns, width: flat(columns, width, minimum="half"),
    "MXFP4": lambda columns, width: with_table(flat(columns, width, signed=False), E2M1),
    "IQ4_XS": iq4_xs,
    **{name: partial(of_gguf, name) for name in ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0")},
    "table of all bytes": lambda columns, width: with_table(
        flat(columns, width, group=128, is_half=False, signed=False), (-128, 127, *range(-7, 7))
    ),
    "unsigned without": lambda columns, width: flat(columns, width, signed=False),
}
BITS = {
    "int4": 4.5,
    "int6": 6.5,
    "int4 with zero points": 4.5,
    "two levels_K": 4.834,
    "Q5_0": 6.5,
    "Q8_0": 8.5,
    "Q4_K": 4.75,
    "Q6_K": 6.625,
    "GPTQ": 4.25,
    "symmetric GPTQ": 4.125,
}
BITS |= {"MXFP4": 4.501, "IQ4_XS": 4.376, "IQ1_S": 4.376, "IQ3_XXS": 4.376, "TQ1_0": 4.19, "IQ1_M": 6.626}
"""Largest memory per weight, in bits, of a wide matrix together with its table.

A GGUF file has 4.5 bits per weight in Q4_K, and 6.5625 in Q6_K.
"""


def widths(name):
    return (256, 768) if name.endswith(("_K", "_XS")) or name.startswith(("IQ", "TQ")) else (16, 33, 100, 512)


@pytest.fixture(params=FORMATS)
def name(request):
    return request.param


def test_products(isa, dtype, name):
    for width in widths(name):
        matrix, bias = FORMATS[name](70, width), torch.randn(70).to(dtype)
        assert fits(matrix)
        for bias_or_none in (bias, None):
            x = torch.randn(40, width).to(dtype)
            x[3] = 0
            close(GroupWeight(matrix, bias_or_none, dtype).multiply(x), reference(matrix, bias_or_none)(x))


def test_bits_do_not_depend_on_other_rows(isa, name):
    matrix = FORMATS[name](70, 768)
    product = GroupWeight(matrix, None, torch.float32)
    x = torch.randn(500, 768)
    together = product.multiply(x)
    for rows in range(1, 41):
        assert torch.equal(product.multiply(x[rows : 2 * rows]), together[rows : 2 * rows])


def test_rows_are_the_dequantised_weights(isa, dtype, name):
    for width in widths(name):
        matrix = FORMATS[name](70, width)
        packed, index = GroupWeight(matrix, None, dtype), torch.randint(70, (50,))
        expected = matrix.dequantized(torch.float32)[index]
        torch.testing.assert_close(packed.rows(index).float(), expected.to(dtype).float(), atol=1e-6, rtol=1e-2)
        for bad in (-1, 70):
            with pytest.raises(IndexError):
                packed.rows(torch.tensor([0, bad]))


def test_slices_share_memory(name):
    matrix, bias = FORMATS[name](100, 512), torch.randn(100)
    whole = GroupWeight(matrix, bias, torch.float32)
    x = torch.randn(5, 512)
    assert whole.slice(5, 40) is None
    for first, end in ((0, 40), (32, 100), (64, 65)):
        part = whole.slice(first, end)
        assert torch.equal(part.multiply(x), whole.multiply(x)[:, first:end])
        assert torch.equal(part.rows(torch.tensor([0])), whole.rows(torch.tensor([first])))


@pytest.mark.parametrize("name", BITS)
def test_resident_memory(name):
    packed = GroupWeight(FORMATS[name](256, 1024), None, torch.float32)
    assert packed.nbytes * 8 / (256 * 1024) <= BITS[name]


def test_a_matrix_whose_contents_are_in_shared_memory(name):
    """A weight can be made from shared memory: a second process has only the shapes, and gets the stored tensors."""
    kept = []

    class Recorded:
        is_filled = False

        def keep(self, tensor):
            kept.append(tensor)
            return tensor

    class Filled:
        is_filled = True

        def keep(self, tensor):
            found = kept.pop(0)
            assert (tensor.shape, tensor.dtype, tensor.device.type) == (found.shape, found.dtype, "meta")
            return found

    matrix, x = FORMATS[name](70, 512), torch.randn(3, 512)
    first = GroupWeight(matrix, None, torch.float32, None, Recorded())
    second = GroupWeight(matrix.to_meta(), None, torch.float32, None, Filled())
    assert not kept and torch.equal(first.multiply(x), second.multiply(x))


def test_matrices_without_a_layout():
    assert not fits(flat(4, 64, group=8)) and not fits(flat(4, 64, bits=8, group=16))
    table = flat(4, 64, signed=False)
    assert fits(with_table(table, range(16))) and not fits(with_table(flat(4, 64, group=16, signed=False), range(16)))
    assert not fits(with_table(table, [0.5] * 16)) and not fits(with_table(table, [200] * 16))
    assert not fits(with_table(flat(4, 64, minimum="half", signed=False), range(16)))


def test_int4_rounds_better_than_the_largest_number_alone():
    """The step size of int4 gives a smaller error than a step size from the largest value of a group.

    That one has a root mean square error of 0.0859 for normally distributed weights.
    """
    x = torch.randn(1000, 320, generator=torch.Generator().manual_seed(0))
    error = (quantize_int4(x).dequantized(torch.float32) - x).square().mean().sqrt()
    assert error < 0.0845


def test_int6_rounds_better_than_the_largest_number_alone():
    """The step size of int6 gives a smaller error than a step size from the largest value of a group.

    The error is the root mean square error for normally distributed weights.
    """
    x = torch.randn(1000, 320, generator=torch.Generator().manual_seed(0))
    error = (quantize_int6(x).dequantized(torch.float32) - x).square().mean().sqrt()
    groups = x.unflatten(1, (-1, 32))
    steps = groups.gather(2, groups.abs().argmax(2, keepdim=True)) / -32
    plain = ((groups / steps).round().clamp(-32, 31) * steps - groups).square().mean().sqrt()
    assert error < 0.99 * plain and error < 0.0208


def test_zero_points_round_groups_better_that_lie_on_one_side_of_zero():
    x = torch.rand(1000, 256, generator=torch.Generator().manual_seed(0)) - 0.2
    errors = [
        (quantize_int4(x, group, zero).dequantized(torch.float32) - x).square().mean().sqrt()
        for group in (32, 128)
        for zero in (True, False)
    ]
    assert errors[0] < 0.75 * errors[1] and errors[2] < 0.75 * errors[3]


def test_groups_divide_the_width():
    found = {width: [int4_group(width, most) for most in (32, 64, 128)] for width in (2048, 576, 352, 100)}
    assert found == {2048: [32, 64, 128], 576: [32, 64, 64], 352: [32, 32, 32], 100: [32, 32, 32]}


@pytest.mark.parametrize(
    "rounded",
    [quantize_int4, partial(quantize_int4, with_zero_points=True), quantize_int6],
    ids=["int4", "zero", "int6"],
)
def test_rounding_keeps_zeros_and_marks_numbers_that_are_not_finite(rounded):
    x = torch.zeros(3, 64)
    x[1, 40], x[2, 3] = torch.nan, torch.inf
    matrix = rounded(x)
    found = GroupWeight(matrix, None, torch.float32, None, PRIVATE).multiply(torch.ones(1, 64))
    assert found[0, 0] == 0 and not found[0, 1:].isfinite().any()
