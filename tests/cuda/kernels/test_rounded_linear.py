"""Products of rounded rows, compared with products of the numbers that the reference rounds to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.backends.cuda.kernels import matrices, rounded_rows
from models.backends.cuda.kernels.quantized_linear import quantized_linear
from models.backends.torch.quantization import quantize_fp8, quantize_int4, quantize_int8, round_rows
from tests.cuda.kernels.cases import DEVICE, DTYPES

KINDS = [("int8", 1), ("int8", 2), ("fp8", 1)]
STATED = {("int8", 1): 1 / 254, ("int8", 2): 1 / 32512, ("fp8", 1): 1 / 16}
"""Bound of the error of a rounded number: of the largest number of its group, and for fp8 of the number itself."""


def rows_of(count: int, inputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows with outliers: every 50th input is 40 times the others."""
    factors = torch.where(torch.arange(inputs) % 50 == 7, 40.0, 1.0)
    return (torch.randn(count, inputs + 3)[:, :inputs] * factors).to(dtype).to(DEVICE)


def numbers(rounded: rounded_rows.RoundedRows) -> Tensor:
    codes, scales = rounded
    if codes.dtype == torch.uint8:
        values = codes[0].view(torch.float8_e4m3fn).float()
    else:
        values = codes[0].float() if len(codes) == 1 else codes[0].float() * 128 + codes[1].float()
    group = torch.arange(values.shape[1], device=values.device) // rounded_rows.GROUP
    return values * scales[:, group]


@pytest.mark.parametrize(("kind", "terms"), KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_rounded_as_by_the_reference(kind: str, terms: int, dtype: torch.dtype) -> None:
    x = rows_of(5, 1100, dtype)
    x[1], x[2, 130] = 0.0, torch.nan
    found = numbers(rounded_rows.round_rows(x, kind, terms))
    expected = round_rows(x, kind, terms, rounded_rows.GROUP)
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0)) and bool(found[2, 128:256].isnan().all())
    wide, kept = x.float(), found.isfinite()
    groups = torch.nn.functional.pad(wide, (0, -1100 % 128)).unflatten(1, (-1, 128)).abs().amax(-1)
    largest = groups.repeat_interleave(128, 1)[:, :1100]
    bound = STATED[kind, terms] * (wide.abs() + largest * 2**-9 if kind == "fp8" else largest)
    assert bool(((found - wide).abs() <= bound * 1.0001)[kept].all())


def check(actual: Tensor, x: Tensor, weight: Tensor, kind: str, terms: int, bias: Tensor | None) -> None:
    rounded = round_rows(x, kind, terms, rounded_rows.GROUP).double()
    expected = rounded @ weight.double().T + (0 if bias is None else bias.double())
    scale = rounded.abs() @ weight.double().abs().T
    assert bool(((actual.double() - expected).abs() <= 1e-6 * scale + 1e-6).all())


@pytest.mark.parametrize(("kind", "terms"), KINDS)
@pytest.mark.parametrize(("rows", "inputs", "group"), [(3, 300, 300), (70, 256, 128), (2, 192, 32)])
def test_weights_of_8_bits(kind: str, terms: int, rows: int, inputs: int, group: int) -> None:
    x, dense, bias = rows_of(rows, inputs), torch.randn(40, inputs, device=DEVICE), torch.randn(40, device=DEVICE)
    parts = dense.unflatten(1, (-1, group)).flatten(0, 1)
    codes, scales = quantize_int8(parts) if kind == "int8" else quantize_fp8(parts)
    matrix = matrices.ByteMatrix(codes.view(40, inputs), scales.view(40, -1), group)
    values = (codes if kind == "int8" else codes.view(torch.float8_e4m3fn)).float() * scales[:, None]
    out = torch.empty(rows, 40, device=DEVICE)
    rounded = rounded_rows.round_rows(x, kind, terms)
    assert quantized_linear(rounded, matrix, bias, out) is out
    check(out, x, values.view(40, inputs), kind, terms, bias)


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize(("inputs", "group", "with_minimums"), [(192, 32, True), (256, 128, False), (320, 320, True)])
def test_weights_of_4_bits(terms: int, inputs: int, group: int, with_minimums: bool) -> None:
    x, matrix = rows_of(9, inputs), quantize_int4(torch.randn(40, inputs, device=DEVICE), group, with_minimums)
    shift = 0 if with_minimums else 8
    packed = matrices.pack_int4((matrix.codes + shift).to(torch.uint8))
    minimums = None if matrix.minimums is None else matrix.minimums - 8 * matrix.scales
    weight = matrices.Int4Matrix(packed, matrix.scales, minimums, group)
    out = torch.empty(9, 40, device=DEVICE)
    quantized_linear(rounded_rows.round_rows(x, "int8", terms), weight, None, out)
    check(out, x, matrix.dequantized(torch.float32), "int8", terms, None)


def test_a_row_that_is_not_finite_fails_alone() -> None:
    x, dense = rows_of(4, 256), torch.randn(20, 256, device=DEVICE)
    x[2, 200] = torch.inf
    codes, scales = quantize_int8(dense)
    out = torch.empty(4, 20, device=DEVICE)
    matrix = matrices.ByteMatrix(codes, scales[:, None], 256)
    quantized_linear(rounded_rows.round_rows(x, "int8", 2), matrix, None, out)
    assert bool(out[2].isnan().all()) and bool(out[[0, 1, 3]].isfinite().all())


def test_two_terms_are_as_exact_as_bfloat16() -> None:
    """The error of a product by rounding its rows to 15 bits is below that by rounding them to bfloat16."""
    x, weight = rows_of(20, 512), torch.randn(30, 512, device=DEVICE)
    exact = x.double() @ weight.double().T
    errors = [
        float((rounded.double() @ weight.double().T - exact).square().mean())
        for rounded in (
            round_rows(x, "int8", 2, rounded_rows.GROUP),
            x.bfloat16().float(),
            round_rows(x, "int8", 1, rounded_rows.GROUP),
        )
    ]
    assert errors[0] < errors[1] < errors[2] / 10
