"""The compiled kernels equal the torch backend, and a row has the same bits alone and among other rows.

`test_cpu_attention.py` tests attention. Without compiled kernels, these tests compare nothing; `test_kernels_are_built`
then fails on a machine with a compiler.
"""

from __future__ import annotations

import shutil

import pytest
import torch

from models.backends import choice, linear_weights
from models.backends.choice import backend
from models.backends.cpu import linear as cpu_linear
from models.backends.cpu import operations as cpu_ops
from models.backends.cpu.backend import CPU as CPU_BACKEND
from models.backends.operands import XieluShape
from models.backends.torch.activations import ACTIVATIONS
from models.backends.torch.backend import TORCH
from models.layers.positions import Rotation
from tests.models.group_reference import ReferenceInt8GroupWeight
from tests.models.int8_reference import ReferenceInt8Weight

CPU = torch.device("cpu")
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
needs_kernels = pytest.mark.usefixtures("kernels")


@pytest.fixture
def kernels():
    assert cpu_ops.available() or shutil.which("c++") is None, "build the kernels: pip install -e ."
    if cpu_ops.available():
        with choice.using("cpu"):
            yield
    else:
        yield


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    bound = BOUNDS[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=bound, rtol=bound)


def test_kernels_are_built():
    assert cpu_ops.available() or shutil.which("c++") is None


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(1, 8), (5, 37), (3, 4, 16), (300, 576)])
def test_rms_norm(dtype, shape):
    x, weight = torch.randn(shape).to(dtype) * 7, torch.randn(shape[-1]).to(dtype)
    close(backend(x).rms_norm(x, weight, 1e-6), TORCH.rms_norm(x, weight, 1e-6))


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("heads", [slice(None), slice(1, 3)])
def test_scale_by_row(dtype, heads):
    x, factors = torch.randn(7, 5, 12).to(dtype)[:, heads], torch.randn(7, 1)
    close(backend(x).scale_by_row(x, factors), TORCH.scale_by_row(x, factors))
    assert torch.equal(backend(x[3:4]).scale_by_row(x[3:4], factors[3:4]), backend(x).scale_by_row(x, factors)[3:4])


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(1, 8), (5, 37), (3, 4, 16), (300, 576)])
def test_rms_norm_from_one(dtype, shape):
    x, weight = torch.randn(shape).to(dtype) * 7, torch.randn(shape[-1]).to(dtype)
    close(backend(x).rms_norm_from_one(x, weight, 1e-6), TORCH.rms_norm_from_one(x, weight, 1e-6))


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(1, 8), (5, 37), (3, 4, 16), (300, 576)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_layer_norm(dtype, shape, with_bias):
    x, weight = torch.randn(shape).to(dtype) * 7 + 3, torch.randn(shape[-1]).to(dtype)
    bias = torch.randn(shape[-1]).to(dtype) if with_bias else None
    close(backend(x).layer_norm(x, weight, bias, 1e-6), TORCH.layer_norm(x, weight, bias, 1e-6))


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("width", [1, 31, 32, 100])
def test_xielu(dtype, width):
    x, shape = (torch.randn(40, width) * 3).to(dtype), XieluShape(0.8, 0.7, 0.5, -1e-6)
    x[7, 0] = 0
    found = backend(x).xielu(x, shape)
    close(found, TORCH.xielu(x, shape))
    wide = x.double()
    exact = torch.where(wide > 0, 0.8 * wide**2, 0.7 * (torch.expm1(wide.clamp(max=-1e-6)) - wide)) + 0.5 * wide
    torch.testing.assert_close(found.double(), exact, atol=BOUNDS[dtype], rtol=BOUNDS[dtype])
    for start, end in ((0, 1), (5, 6), (3, 10), (39, 40)):
        assert torch.equal(backend(x[start:end]).xielu(x[start:end], shape), found[start:end])
    x[4, -1] = torch.nan
    assert backend(x).xielu(x, shape).isfinite().all(1).tolist() == [row != 4 for row in range(40)]


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("width", [1, 31, 32, 100])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_scaled_activation(dtype, width, activation):
    x = (torch.randn(40, width) * 3).to(dtype)
    found = backend(x).scaled_activation(x, 0.7, activation)
    close(found, TORCH.scaled_activation(x, 0.7, activation))
    for start, end in ((0, 1), (5, 6), (3, 10), (39, 40)):
        assert torch.equal(backend(x[start:end]).scaled_activation(x[start:end], 0.7, activation), found[start:end])
    x[4, -1] = torch.nan
    found = backend(x).scaled_activation(x, 0.7, activation)
    assert found.isfinite().all(1).tolist() == [row != 4 for row in range(40)]


@needs_kernels
@pytest.mark.parametrize("width", [1, 31, 32, 100, 40_000])
@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_soft_cap(width, cap):
    x = torch.randn(9, width) * cap
    x[1, 0], x[2, 0], x[3, 0] = 0, torch.inf, -torch.inf
    exact = cap * torch.tanh(x.double() / cap)
    found = backend(x).soft_cap(x.clone(), cap)
    close(found, TORCH.soft_cap(x.clone(), cap))
    torch.testing.assert_close(found.double(), exact, atol=3e-7 * cap, rtol=0)
    for start, end in ((0, 1), (5, 6), (2, 7), (8, 9)):
        assert torch.equal(backend(x).soft_cap(x[start:end].clone(), cap), found[start:end])
    x[4, -1] = torch.nan
    assert backend(x).soft_cap(x, cap).isfinite().all(1).tolist() == [row != 4 for row in range(9)]


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("heads", "head_dim", "dim"), [(1, 2, 2), (3, 16, 16), (4, 20, 12), (9, 64, 64)])
def test_rotate(dtype, interleaved, heads, head_dim, dim):
    for tokens in (1, 5, 200):
        wide = torch.randn(tokens, heads + 2, head_dim).to(dtype)
        angles = torch.rand(tokens, 1, dim // 2) * 100
        for x in (wide[:, :heads], wide[:, :heads].contiguous()):
            own_rows = Rotation(None, angles.cos(), angles.sin())
            close(backend(x).rotate(x, own_rows, interleaved), TORCH.rotate(x, own_rows, interleaved))
            by_position = Rotation(None, angles.cos(), angles.sin(), torch.randint(tokens, (tokens,)))
            close(backend(x).rotate(x, by_position, interleaved), TORCH.rotate(x, by_position, interleaved))


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
def test_write_slots(dtype):
    joined = torch.randn(6, 5, 8).to(dtype)
    key, value = joined[:, :2], joined[:, 3:]
    slots = torch.tensor([3, 17, 4, 0, 19, 8])
    found, expected = torch.zeros(2, 5, 4, 2, 8, dtype=dtype), torch.zeros(2, 5, 4, 2, 8, dtype=dtype)
    backend(key).write_slots(found[0], found[1], slots, key, value)
    TORCH.write_slots(expected[0], expected[1], slots, key, value)
    assert torch.equal(found, expected)


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("index", [[], [2], [5, 0, 5, 3]])
def test_take_rows(dtype, index):
    joined, index = torch.randn(6, 5, 8).to(dtype), torch.tensor(index, dtype=torch.int64)
    for x in (joined, joined[:, 1:3], joined[:, :, 2:5], joined.flatten(1)):
        assert torch.equal(backend(x).take_rows(x, index), TORCH.take_rows(x, index))


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
def test_copy_blocks(dtype):
    caches = [torch.randn(9, 4, heads, 8).to(dtype) for heads in (2, 1, 3)]
    copies = [(0, 5, 0, 3), (7, 8, 2, 3), (0, 1, 0, 4), (2, 6, 1, 4), (2, 3, 4, 4)]
    found, expected = [cache.clone() for cache in caches], [cache.clone() for cache in caches]
    backend(found[0]).copy_blocks(found, copies)
    TORCH.copy_blocks(expected, copies)
    for cache, ours, theirs in zip(caches, found, expected, strict=True):
        for block in range(9):
            first, end = next((slots for _, destination, *slots in copies if destination == block), (0, 0))
            assert torch.equal(ours[block, first:end], theirs[block, first:end])
            assert torch.equal(ours[block, :first], cache[block, :first])
            assert torch.equal(ours[block, end:], cache[block, end:])


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("quantization", [None, "int8", "int8-fast"])
@pytest.mark.parametrize(("width", "columns"), [(8, 5), (24, 40), (33, 17), (64, 256), (576, 1536), (1536, 576)])
def test_packed_weights(dtype, quantization, width, columns):
    weight, bias = torch.randn(columns, width).to(dtype) * width**-0.5, torch.randn(columns).to(dtype)
    packer = linear_weights.packer(dtype, CPU, quantization)
    assert packer is not None
    x = torch.randn(130, width).to(dtype)
    x[3] = 0
    for bias_or_none in (bias, None):
        packed = packer(weight, bias_or_none)
        found = packed.multiply(x)
        if quantization is not None:
            kind = ReferenceInt8GroupWeight if quantization == "int8" else ReferenceInt8Weight
            expected = kind(weight, bias_or_none).multiply(x)
        else:
            expected = TORCH.linear(x, weight, bias_or_none)
        close(found, expected)
        for start, end in ((0, 1), (5, 6), (0, 2), (3, 10), (100, 117), (0, 64), (1, 130)):
            assert torch.equal(packed.multiply(x[start:end]), found[start:end])
    packed = packer(weight, bias)
    close(packed.multiply(x, "silu"), torch.nn.functional.silu(packed.multiply(x).float()).to(dtype))
    close(packed.multiply(x, "gelu_quick"), ACTIVATIONS["gelu_quick"](packed.multiply(x)))
    other = torch.randn(130, columns).to(dtype)
    close(packed.multiply(x, multiplier=other), packed.multiply(x) * other)
    assert torch.equal(packed.multiply(x[7:8], multiplier=other[7:8]), packed.multiply(x, multiplier=other)[7:8])


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_slice_of_a_weight_gives_its_columns(dtype, with_bias):
    weight, x = torch.randn(150, 37).to(dtype), torch.randn(7, 37).to(dtype)
    bias = torch.randn(150).to(dtype) if with_bias else None
    for kind in (cpu_linear.FloatWeight, cpu_linear.Int8Weight, ReferenceInt8Weight):
        whole = kind(weight, bias)
        for first, end in ((0, 40), (32, 150), (96, 128)):
            assert torch.equal(whole.slice(first, end).multiply(x), whole.multiply(x)[:, first:end])
        if kind is not ReferenceInt8Weight:
            assert whole.slice(40, 150) is None


@needs_kernels
@pytest.mark.parametrize("dtype", BOUNDS)
def test_int8_sums_are_exact_for_the_largest_values(dtype):
    """int8 sums are exact for the largest values, which would overflow or saturate a narrower accumulator."""
    width = 4096
    weight = torch.ones(40, width).to(dtype)
    weight[1::2] = -1
    x = torch.ones(3, width).to(dtype)
    x[1] = -1
    found = linear_weights.packer(dtype, CPU, "int8-fast")(weight, None).multiply(x)
    expected = (x.double() @ weight.double().T).to(dtype)
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-6 if dtype == torch.float32 else 1e-2)


@needs_kernels
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_affects_no_other_row(bad):
    x = torch.randn(9, 20)
    x[4, 7] = bad
    weight = torch.randn(33, 20)
    for quantization in (None, "int8", "int8-fast", "int4"):
        packed = linear_weights.packer(torch.float32, CPU, quantization)(weight, None)
        finite = packed.multiply(x).sum(1).isfinite()
        assert finite.tolist() == [row != 4 for row in range(9)]


def test_the_int8_reference_equals_its_definition():
    weight, x = torch.randn(7, 30), torch.randn(4, 30) * 5
    found = ReferenceInt8Weight(weight, None).multiply(x)
    for row in range(4):
        for column in range(7):
            steps = x[row].abs().max() / 127, weight[column].abs().max() / 127
            whole = (x[row] / steps[0]).round() @ (weight[column] / steps[1]).round()
            torch.testing.assert_close(found[row, column], whole * steps[0] * steps[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_rows_of_tables(dtype):
    tokens, positions, types = (torch.randn(rows, 50).to(dtype) for rows in (90, 40, 2))
    index, places, kinds = torch.randint(0, 90, (33,)), torch.arange(33), torch.randint(0, 2, (33,))
    parts = [(index, tokens), (places, positions), (kinds, types)]
    for found in (parts, parts[:1], [*parts[:2], (None, types)]):
        assert torch.equal(CPU_BACKEND.sum_of_rows(found, 7.1), TORCH.sum_of_rows(found, 7.1))
    before = torch.randn(33, 50).to(dtype)
    assert torch.equal(CPU_BACKEND.sum_of_rows(parts, 1.0, before), TORCH.sum_of_rows(parts, 1.0, before))
    with pytest.raises(IndexError):
        CPU_BACKEND.sum_of_rows([(index, tokens), (places + 8, positions)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_means_of_spans(dtype):
    x, spans = torch.randn(300, 70).to(dtype), [(0, 1), (3, 200), (200, 300)]
    found = CPU_BACKEND.means_of_spans(x, spans)
    torch.testing.assert_close(found, TORCH.means_of_spans(x, spans), atol=1e-6, rtol=1e-5)
    assert torch.equal(CPU_BACKEND.means_of_spans(x[3:], [(0, 197)])[0], found[1])
