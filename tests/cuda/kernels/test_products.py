"""Products of experts and with quantised weights, compared with torch."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.backends.cuda.kernels import experts as kernels
from models.backends.cuda.kernels import matrices, quantized_linear, row_products
from models.backends.cuda.kernels.expert_epilogue import EpilogueSettings
from models.backends.cuda.kernels.expert_tiles import group_by_expert
from models.backends.torch.activations import activate
from models.backends.torch.quantization import quantize_int4, quantize_int8
from tests.cuda.kernels.cases import DEVICE, DTYPES, TOLERANCES
from weights.quantized_matrix import QuantizedMatrix


def _random(dtype: torch.dtype, *shape: int) -> Tensor:
    return (torch.randn(shape) * 0.3).to(dtype).to(DEVICE)


def _assert_near(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)


def _check_tiles(tokens: int, num_experts: int, choices: int) -> None:
    experts = torch.rand(tokens, num_experts).argsort(-1)[:, :choices].contiguous().to(DEVICE)
    tiles = group_by_expert(experts, num_experts)
    assert torch.equal(tiles.order.long(), experts.flatten().sort(stable=True).indices)
    places = []
    for expert, start, end in zip(tiles.tile_experts, tiles.tile_starts, tiles.tile_ends, strict=True):
        assert end - start <= tiles.tile and bool((experts.flatten()[tiles.order[start:end]] == expert).all())
        places += range(int(start), int(end))
    assert places == list(range(tokens * choices))


# Pairs of the last case do not fit in one program, and tiles have their largest size.
@pytest.mark.parametrize(("tokens", "num_experts", "choices"), [(1, 9, 2), (70, 9, 3), (0, 4, 2), (600, 3, 2)])
def test_tiles_have_every_pair_once(tokens: int, num_experts: int, choices: int) -> None:
    _check_tiles(tokens, num_experts, choices)


@pytest.mark.many_shapes
@settings(max_examples=20, derandomize=True)
@given(st.integers(0, 400), st.integers(1, 40), st.integers(1, 3))
def test_tiles_of_many_shapes(tokens: int, num_experts: int, choices: int) -> None:
    _check_tiles(tokens, num_experts, min(choices, num_experts))


def _check_experts(
    dtype: torch.dtype, tokens: int, with_bias: bool, limit: float | None, with_shared: bool, hidden: int = 40
) -> None:
    num_experts, choices, width = 4, 2, 72
    x, shares = _random(dtype, tokens, hidden), torch.rand(tokens, choices, device=DEVICE)
    experts = torch.rand(tokens, num_experts).argsort(-1)[:, :choices].contiguous().to(DEVICE)
    inner, outer = _random(dtype, num_experts, 2 * width, hidden) / 2, _random(dtype, num_experts, hidden, width)
    biases = _random(dtype, num_experts, 2 * width) if with_bias else None
    outer_biases = _random(dtype, num_experts, hidden) if with_bias else None
    shared = _random(dtype, tokens, hidden) if with_shared else None
    gate = _random(dtype, tokens, 1) if with_shared else None
    tiles = group_by_expert(experts, num_experts)
    offset = 0.0 if limit is None else 1.0
    gated = EpilogueSettings("silu", True, limit, offset)
    middle = kernels.expert_linear(x, inner, biases, tiles, gated)
    actual = kernels.sum_of_experts(kernels.expert_linear(middle, outer, outer_biases, tiles), shares, shared, gate)
    expected = torch.zeros(tokens, hidden, device=DEVICE)
    for token in range(tokens):
        for choice, expert in enumerate(experts[token].tolist()):
            both = inner[expert].float() @ x[token].float()
            if biases is not None:
                both = both + biases[expert].float()
            one, two = both.chunk(2)
            if limit is not None:
                one, two = one.clamp(max=limit), two.clamp(-limit, limit)
            result = outer[expert].float() @ (activate(one[None], "silu")[0] * (two + offset))
            if outer_biases is not None:
                result = result + outer_biases[expert].float()
            expected[token] += shares[token, choice] * result
    if shared is not None and gate is not None:
        expected += torch.sigmoid(gate.float()) * shared.float()
    _assert_near(actual, expected)


def test_experts() -> None:
    _check_experts(torch.float16, 9, True, 0.4, True, hidden=136)
    _check_experts(torch.float32, 3, False, None, False)


def test_sum_of_wide_experts() -> None:
    # Two programs for a token: the second has 12 columns.
    x, shares = _random(torch.float16, 4, 1036), torch.rand(2, 2, device=DEVICE)
    actual = kernels.sum_of_experts(x, shares, None, None)
    _assert_near(actual, (x.float().unflatten(0, (2, 2)) * shares[..., None]).sum(1))


@pytest.mark.many_shapes
@settings(max_examples=12, derandomize=True)
@given(st.sampled_from(DTYPES), st.integers(1, 90), st.booleans(), st.sampled_from([None, 0.4]), st.booleans())
def test_experts_of_many_shapes(
    dtype: torch.dtype, tokens: int, with_bias: bool, limit: float | None, with_shared: bool
) -> None:
    _check_experts(dtype, tokens, with_bias, limit, with_shared)


def test_experts_without_gate() -> None:
    x, weight = _random(torch.float16, 30, 32), _random(torch.float16, 3, 80, 32)
    experts = torch.rand(30, 3).argsort(-1)[:, :2].contiguous().to(DEVICE)
    actual = kernels.expert_linear(x, weight, None, group_by_expert(experts, 3), EpilogueSettings("gelu"))
    pairs = zip(x.repeat_interleave(2, 0), experts.flatten(), strict=True)
    products = torch.stack([weight[expert].float() @ row.float() for row, expert in pairs])
    _assert_near(actual, torch.nn.functional.gelu(products))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("columns", "inputs"), [(70, 1300), (1, 8), (3, 1024)])
def test_a_dense_row(dtype: torch.dtype, columns: int, inputs: int) -> None:
    x, weight, bias = _random(dtype, 1, inputs), _random(dtype, columns, inputs), _random(dtype, columns)
    expected = x.float() @ weight.float().T
    _assert_near(row_products.dense_row(x, weight, None, x.new_empty(1, columns)), expected)
    wide = x.new_empty(1, columns, dtype=torch.float32)
    assert row_products.dense_row(x, weight, bias, wide) is wide
    torch.testing.assert_close(wide, expected + bias.float(), rtol=1e-4, atol=1e-4)


def _check_int8(dtype: torch.dtype, rows: int, columns: int, inputs: int, with_bias: bool) -> None:
    x, weight = _random(dtype, rows, inputs + 8)[:, :inputs], _random(torch.float32, columns, inputs)
    bias = _random(dtype, columns) if with_bias else None
    codes, scales = quantize_int8(weight)
    actual = quantized_linear.quantized_linear(x, matrices.ByteMatrix(codes, scales[:, None], inputs), bias)
    expected = x.float() @ (codes.float() * scales[:, None]).T
    _assert_near(actual, expected if bias is None else expected + bias.float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "inputs"), [(1, 70, 200), (3, 70, 1300), (70, 33, 33), (0, 5, 8)])
def test_int8_linear(dtype: torch.dtype, rows: int, columns: int, inputs: int) -> None:
    _check_int8(dtype, rows, columns, inputs, rows == 70)


@pytest.mark.many_shapes
@settings(max_examples=20, derandomize=True)
@given(st.sampled_from(DTYPES), st.integers(0, 140), st.integers(1, 140), st.sampled_from([8, 33, 200]), st.booleans())
def test_int8_linear_of_many_shapes(dtype: torch.dtype, rows: int, columns: int, inputs: int, with_bias: bool) -> None:
    _check_int8(dtype, rows, columns, inputs, with_bias)


def _packed(matrix: QuantizedMatrix) -> matrices.Int4Matrix:
    """A matrix with signed codes, or with codes from 0 to 15 and minimums, in the layout of the kernel."""
    if matrix.codes.dtype == torch.int8:
        codes, minimums = matrix.codes + 8, matrix.minimums
    else:
        codes, minimums = matrix.codes, cast(Tensor, matrix.minimums) - 8 * matrix.scales
    return matrices.Int4Matrix(matrices.pack_int4(codes.to(torch.uint8)), matrix.scales.half(), minimums, matrix.group)


def _check_int4(dtype: torch.dtype, rows: int, matrix: QuantizedMatrix, with_bias: bool) -> None:
    columns, inputs = matrix.shape
    x, bias = _random(dtype, rows, inputs + 8)[:, :inputs], _random(dtype, columns) if with_bias else None
    expected = x.float() @ matrix.dequantized(torch.float32).T
    _assert_near(
        quantized_linear.quantized_linear(x, _packed(matrix), bias),
        expected if bias is None else expected + bias.float(),
    )


@pytest.mark.parametrize(
    ("dtype", "group", "with_zero_points", "width"),
    [
        (torch.float32, 32, False, 128),
        (torch.float16, 64, True, 192),
        (torch.float32, 128, True, 192),
        (torch.float16, 128, False, 384),
        (torch.float32, 200, False, 64),
    ],
)
def test_int4_weights_are_exact(dtype: torch.dtype, group: int, with_zero_points: bool, width: int) -> None:
    """The product with a unit matrix is the matrix that `QuantizedMatrix` describes, to the last bit."""
    matrix = quantize_int4(_random(torch.float32, 37, width), group, with_zero_points)
    product = quantized_linear.quantized_linear(torch.eye(width, dtype=dtype, device=DEVICE), _packed(matrix), None)
    assert torch.equal(product.T, matrix.dequantized(dtype))


def test_int4_linear() -> None:
    matrix = quantize_int4(_random(torch.float32, 70, 192), 128, True)
    _check_int4(torch.float16, 1, matrix, True)
    _check_int4(torch.float32, 1, quantize_int4(_random(torch.float32, 5, 2112), 32, False), False)
    _check_int4(torch.float32, 17, matrix, False)
    x, out = _random(torch.float16, 40, 192), torch.empty(40, 70, dtype=torch.float16, device=DEVICE)
    assert quantized_linear.quantized_linear(x, _packed(matrix), None, out) is out
    _assert_near(out, x.float() @ matrix.dequantized(torch.float32).T)


@pytest.mark.many_shapes
@settings(max_examples=20, derandomize=True)
@given(
    st.sampled_from(DTYPES),
    st.integers(0, 140),
    st.integers(1, 140),
    st.sampled_from([64, 192, 448]),
    st.sampled_from([32, 64, 128]),
    st.booleans(),
    st.booleans(),
)
def test_int4_linear_of_many_shapes(
    dtype: torch.dtype, rows: int, columns: int, inputs: int, group: int, with_zero_points: bool, with_bias: bool
) -> None:
    _check_int4(dtype, rows, quantize_int4(_random(torch.float32, columns, inputs), group, with_zero_points), with_bias)
