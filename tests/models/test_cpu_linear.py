"""Matrix products of the compiled kernels, with every instruction set that the processor supports.

They equal the reference. A row has the same bits for every number of rows, and a fused epilogue has the same bits as
separate operations.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from models.backends.cpu import linear as cpu_linear
from models.backends.cpu.group_weight import GroupWeight
from models.backends.cpu.programs.inputs import TensorInput
from models.backends.cpu.programs.lowering import lower
from models.backends.cpu.programs.trace import Trace
from models.backends.torch.activations import ACTIVATIONS
from models.backends.torch.backend import TORCH
from models.backends.torch.quantization import quantize_int4
from tests.models.group_reference import reference
from tests.models.int8_reference import ReferenceInt8Weight

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
KINDS = ("packed", "dense", "int8", "int4")
SHAPES = [(8, 5), (1, 1), (33, 17), (24, 64), (63, 33), (576, 96), (1536, 70)]

pytestmark = pytest.mark.usefixtures("kernels")


def make(kind, weight, bias):
    """Two functions that multiply by a weight: the tested one, and its reference. kind: key of `KINDS`."""
    if kind == "int8":
        return cpu_linear.Int8Weight(weight, bias).multiply, ReferenceInt8Weight(weight, bias).multiply
    if kind == "int4":
        matrix = quantize_int4(weight)
        return GroupWeight(matrix, bias, weight.dtype).multiply, reference(matrix, bias)
    product = cpu_linear.FloatWeight(weight, bias, is_packed=kind == "packed")
    return product.multiply, lambda x: TORCH.linear(x.double(), weight.double(), _double(bias)).to(x.dtype)


def plus_residual(product, x, residual, activation=None, multiplier=None):
    """Run a program in which a product and the addition of a residual are fused. The tensors may be slices."""
    trace = Trace()
    sides = [tensor for tensor in (x, residual, multiplier) if tensor is not None]
    given = [TensorInput(str(place), side.dtype, tuple(side.shape[1:])) for place, side in enumerate(sides)]
    symbols = [replace(trace.input(own), row_stride=side.stride(0)) for own, side in zip(given, sides, strict=True)]
    program = lower(symbols[1] + product(symbols[0], activation, *symbols[2:]))
    assert "add" not in program.names
    return program.run(len(x), {own: side.data_ptr() for own, side in zip(given, sides, strict=True)})


def _double(x):
    return None if x is None else x.double()


def weights(dtype, width, columns):
    return torch.randn(columns, width).to(dtype) * width**-0.5, torch.randn(columns).to(dtype)


def close(found, expected):
    assert found.dtype == expected.dtype
    bound = BOUNDS[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=bound, rtol=bound)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "columns"), SHAPES)
def test_products(isa, dtype, kind, width, columns):
    weight, bias = weights(dtype, width, columns)
    for bias_or_none in (bias, None):
        product, reference = make(kind, weight, bias_or_none)
        x = torch.randn(40, width).to(dtype)
        x[3] = 0
        close(product(x), reference(x))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_other_rows(isa, dtype, kind):
    """The kernel divides a product of 500 rows into blocks; each row has the same bits as with 1 to 40 rows."""
    weight, bias = weights(dtype, 1100, 70)
    product, _ = make(kind, weight, bias)
    x = torch.randn(500, 1100).to(dtype)
    together = product(x, "silu")
    for rows in range(1, 41):
        assert torch.equal(product(x[rows : 2 * rows], "silu"), together[rows : 2 * rows])


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_threads(dtype, kind):
    weight, bias = weights(dtype, 576, 4096)
    product, _ = make(kind, weight, bias)
    x = torch.randn(33, 576).to(dtype)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(product(x))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("packed", [True, False])
def test_float32_sums_of_a_bfloat16_weight(isa, packed):
    """With `out_dtype` float32, the sums are not rounded. Rounded to bfloat16, they equal the usual result."""
    for width, columns in SHAPES:
        weight, bias = weights(torch.bfloat16, width, columns)
        x = torch.randn(40, width).bfloat16()
        for bias_or_none in (bias, None):
            narrow, wide = (cpu_linear.FloatWeight(weight, bias_or_none, packed, to) for to in (None, torch.float32))
            sums = wide.multiply(x)
            close(sums, TORCH.linear(x.double(), weight.double(), _double(bias_or_none)).float())
            assert torch.equal(sums.bfloat16(), narrow.multiply(x))
            assert torch.equal(wide.multiply(x[7:9]), sums[7:9])


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_in_given_memory(dtype, kind):
    weight, bias = weights(dtype, 33, 70)
    for product in make(kind, weight, bias)[: 2 if kind == "int8" else 1]:
        x, out = torch.randn(23, 33).to(dtype), torch.full((40, 70), 7.0).to(dtype)
        found = product(x, out=out)
        assert found.data_ptr() == out.data_ptr() and torch.equal(found, product(x))
        assert (out[23:] == 7).all()


def test_packed_and_dense_weights_give_the_same_bits(isa, dtype):
    for width, columns in SHAPES:
        weight, bias = weights(dtype, width, columns)
        packed, dense = (cpu_linear.FloatWeight(weight, bias, packed) for packed in (True, False))
        x = torch.randn(23, width).to(dtype)
        for rows in (1, 2, 5, 23):
            assert torch.equal(packed.multiply(x[:rows]), dense.multiply(x[:rows]))


def test_rows_of_a_packed_weight(isa, dtype):
    for width, columns in SHAPES:
        weight, bias = weights(dtype, width, columns)
        packed = cpu_linear.FloatWeight(weight, bias)
        index = torch.randint(columns, (2, 50))[:, ::2][1]
        assert torch.equal(packed.rows(index), weight[index])
        rounded, reference = cpu_linear.Int8Weight(weight, bias), ReferenceInt8Weight(weight, bias)
        assert torch.equal(rounded.rows(index), reference.rows(index))
        half_a_step = float(weight.float().abs().max()) / 250
        torch.testing.assert_close(rounded.rows(index).float(), weight[index].float(), atol=half_a_step, rtol=0.005)
        for bad in (-1, columns):
            for table in (packed, rounded, reference):
                with pytest.raises(IndexError):
                    table.rows(torch.tensor([0, bad]))


def are_same(found, expected):
    """Whether all bits are equal, except for subnormal numbers.

    The bfloat16 instruction rounds subnormal numbers to zero; torch does not.
    """
    found, expected = (torch.where(x.abs() <= torch.finfo(x.dtype).tiny, 0, x) for x in (found, expected))
    return torch.equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_an_epilogue_has_the_bits_of_its_steps(isa, dtype, kind, activation):
    weight, bias = weights(dtype, 40, 70)
    product, _ = make(kind, weight, bias)
    x = torch.randn(14, 40).to(dtype) * 3
    other, residual = torch.randn(2, 14, 70).to(dtype)
    activated = product(x, activation)
    if activation is not None:
        close(activated, ACTIVATIONS[activation](product(x)))
    assert are_same(product(x, activation, other), activated * other)
    assert are_same(plus_residual(product, x, residual, activation), activated + residual)
    assert are_same(plus_residual(product, x, residual, activation, other), activated * other + residual)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(isa, activation):
    """Activations equal float64 over the whole range of float32. The weight is 1, so that the activation gets x."""
    x = torch.cat([torch.linspace(-30, 30, 60001), torch.logspace(-30, 30, 2001), -torch.logspace(-30, 30, 2001)])
    product = cpu_linear.FloatWeight(torch.eye(1), None).multiply
    found = product(x[:, None], activation)[:, 0].double()
    expected = ACTIVATIONS[activation](x.double())
    finite = expected.abs() < torch.finfo(torch.float32).max
    assert ((found - expected).abs() <= 1e-6 * expected.abs().clamp_min(1))[finite].all() and found[
        ~finite
    ].isinf().all()
    assert product(torch.tensor([[torch.nan]]), activation).isnan().all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_in_bfloat16(isa, activation):
    """The error of activations in bfloat16 is little more than the rounding, for pairs of rows and single rows."""
    x = torch.cat([torch.linspace(-30, 30, 60001), torch.logspace(-30, 30, 2001), -torch.logspace(-30, 30, 2001)])
    x = x.bfloat16().unique().repeat_interleave(2)[1:]
    product = cpu_linear.FloatWeight(torch.eye(32)[:, :1].repeat(1, 2).bfloat16() * 0.5, None).multiply
    found = product(x[:, None].repeat(1, 2), activation)[:, 0].double()
    expected = ACTIVATIONS[activation](x.double())
    finite = expected.abs() < torch.finfo(torch.bfloat16).max
    assert ((found - expected).abs() <= (2**-8 + 4e-4) * expected.abs() + 1e-6)[finite].all()
    assert found[~finite].isinf().all()
    assert product(torch.full((3, 2), torch.nan).bfloat16(), activation)[:, 0].isnan().all()


@pytest.mark.parametrize("kind", KINDS)
def test_slices_and_transposed_tensors(isa, dtype, kind):
    """Products are right if inputs, multipliers and residuals are slices of wider tensors or not contiguous."""
    weight, bias = weights(dtype, 24, 40)
    product, _ = make(kind, weight, bias)
    wide, sides = torch.randn(13, 60).to(dtype), torch.randn(2, 13, 99).to(dtype)
    multiplier, residual = (side[:, 5:45] for side in sides)
    plain = product(wide[:, 7:31].contiguous(), None, multiplier.contiguous())
    assert torch.equal(product(wide[:, 7:31], None, multiplier), plain)
    assert torch.equal(product(wide[:, 7:31].T.contiguous().T, None, multiplier.T.contiguous().T), plain)
    assert are_same(plus_residual(product, wide[:, 7:31], residual, None, multiplier), plain + residual)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_affects_no_other_row(isa, dtype, kind, bad):
    """NaN or infinity in a row changes no other row.

    The width is odd, so that the last element of a row is adjacent to the first element of the next row.
    """
    weight, _ = weights(dtype, 33, 40)
    product, _ = make(kind, weight, None)
    for place, activation in itertools.product((0, 32), (None, "silu", "gelu")):
        x = torch.randn(15, 33).to(dtype)
        x[4, place] = bad
        finite = product(x, activation).float().sum(1).isfinite()
        assert finite.tolist() == [row != 4 for row in range(15)]


def test_another_order_of_summation_has_other_bits(dtype):
    """Negative control of the tests of equal bits: a product that is computed in two halves has other bits."""
    weight, _ = weights(dtype, 576, 96)
    x = torch.randn(5, 576).to(dtype)
    whole = cpu_linear.FloatWeight(weight, None).multiply(x)
    halves = [cpu_linear.FloatWeight(part.contiguous(), None) for part in weight.split(288, 1)]
    split = halves[0].multiply(x[:, :288]).float() + halves[1].multiply(x[:, 288:]).float()
    close(split.to(dtype), whole)
    assert not torch.equal(split.to(dtype), whole)
