"""Products whose bits depend neither on the number of rows nor on the place of a row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from models.backends.cuda.kernels import expert_tiles, experts, fixed_order_linear, matrices, quantized_linear
from models.backends.cuda.kernels.expert_epilogue import EpilogueSettings
from models.backends.cuda.kernels.row_products import dense_row
from models.backends.torch.quantization import quantize_int4, quantize_int8
from tests.cuda.kernels.cases import DEVICE, TOLERANCES

ALL_DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def random(dtype: torch.dtype, *shape: int) -> Tensor:
    return (torch.randn(shape) * 0.3).to(dtype).to(DEVICE)


def dense(weight: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype | None = None) -> Callable:
    def multiply(x: Tensor) -> Tensor:
        out = torch.empty(x.shape[0], weight.shape[0], dtype=out_dtype or x.dtype, device=x.device)
        return fixed_order_linear.fixed_order_linear(x, weight, bias, out)

    return multiply


def _byte_matrix(weight: Tensor) -> matrices.ByteMatrix:
    codes, scales = quantize_int8(weight)
    return matrices.ByteMatrix(codes, scales[:, None], codes.shape[1])


def assert_same_for_all_rows(multiply: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Some rows alone, all rows, some of them, and all in another order give the same bits."""
    together = multiply(x)
    order = torch.randperm(len(x))
    assert torch.equal(multiply(x[order]), together[order])
    assert torch.equal(multiply(x[: len(x) - 1]), together[:-1])
    for row in (0, len(x) // 2, len(x) - 1):
        assert torch.equal(multiply(x[row : row + 1]), together[row : row + 1])


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize(("rows", "columns", "inputs"), [(1, 70, 200), (67, 40, 1100), (3, 5, 33), (0, 5, 8)])
def test_products_agree_with_torch(dtype: torch.dtype, rows: int, columns: int, inputs: int) -> None:
    x, weight, bias = random(dtype, rows, inputs), random(dtype, columns, inputs), random(dtype, columns)
    expected = x.float() @ weight.float().T
    tolerance = TOLERANCES[dtype]
    for of_all, out_dtype in ((bias, dtype), (None, torch.float32)):
        actual = dense(weight, of_all, out_dtype)(x)
        assert actual.dtype == out_dtype
        wanted = expected if of_all is None else expected + of_all.float()
        torch.testing.assert_close(actual.float(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_a_row_gives_the_same_bits_alone_and_among_17(dtype: torch.dtype) -> None:
    x, weight, bias = random(dtype, 17, 1100), random(dtype, 40, 1100), random(dtype, 40)
    assert_same_for_all_rows(dense(weight, bias), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_programs_that_share_a_product_change_no_bit(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of many rows has enough programs, and one of few rows is divided."""
    x, weight, bias = random(dtype, 3, 2100), random(dtype, 40, 2100), random(dtype, 40)
    results = []
    for enough in (0, 1 << 20):
        monkeypatch.setattr(fixed_order_linear, "_ENOUGH_PROGRAMS", enough)
        results += [dense(weight, bias)(x), dense(weight, None, torch.float32)(x)]
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])


def test_the_product_of_a_single_row_has_another_order() -> None:
    """The test above compares what would differ: the kernel for one row sums in another order."""
    x, weight = random(torch.float32, 2, 1100), random(torch.float32, 200, 1100)
    alone = dense_row(x[:1], weight, None, x.new_empty(1, 200))
    assert not torch.equal(alone, dense(weight)(x)[:1])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantised_products_in_fixed_order(bits: int, dtype: torch.dtype) -> None:
    x, weight = random(dtype, 17, 320), random(torch.float32, 40, 320)
    multiply = quantized_linear.quantized_linear
    if bits == 8:
        matrix = _byte_matrix(weight)
    else:
        rounded = quantize_int4(weight, 64)
        codes = matrices.pack_int4((rounded.codes + 8).to(torch.uint8))
        matrix = matrices.Int4Matrix(codes, rounded.scales.half(), None, 64)
    assert_same_for_all_rows(lambda x: multiply(x, matrix, None, fixed_order=True), x)
    wide = x.float()
    assert not torch.equal(multiply(wide[:1], matrix, None), multiply(wide, matrix, None, fixed_order=True)[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_in_fixed_order(dtype: torch.dtype) -> None:
    x, weight = random(dtype, 17, 200), random(dtype, 3, 2 * 24, 200)
    chosen = torch.rand(17, 3).argsort(-1)[:, :2].contiguous().to(DEVICE)
    rows = torch.arange(17, device=DEVICE)

    def multiply(index: Tensor) -> Tensor:
        tiles = expert_tiles.group_by_expert(chosen[index].contiguous(), 3, fixed_order=True)
        assert tiles.tile == expert_tiles._MOST_PAIRS
        pairs = experts.expert_linear(x[index].contiguous(), weight, None, tiles, EpilogueSettings("silu", True))
        return pairs.unflatten(0, (len(index), 2))

    assert_same_for_all_rows(multiply, rows)
