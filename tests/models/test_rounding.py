"""The compiled search for the scales of rounded weights equals the search with torch, except for the order of sums."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.backends.cpu.rounding import KernelRounding
from models.backends.torch.quantization import quantize_int6, quantize_int8_groups
from models.backends.torch.rounding import GROUP, TORCH
from models.backends.torch.two_levels import quantize_two_levels

pytestmark = pytest.mark.usefixtures("isa")
KERNELS = KernelRounding()


def numbers(rows: int = 37, groups: int = 21) -> Tensor:
    """Random weights [rows, groups, inputs] of many magnitudes.

    Some groups are all equal, have one sign only, or have a single nonzero value.
    """
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(rows, groups, GROUP, generator=generator)
    x *= torch.logspace(-3, 3, rows)[:, None, None]
    x[0, 0], x[0, 1], x[0, 2, 1:] = 0.0, 0.25, 0.0
    x[1, 0], x[1, 1] = x[1, 0].abs(), -x[1, 1].abs()
    return x


def error_of_two_levels(x: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    weights = x.square().mean(2, keepdim=True).sqrt() + x.abs()
    codes = TORCH.codes(x, scale, minimum, 0, 15)
    return (weights * (codes * scale[:, :, None] - minimum[:, :, None] - x).square()).sum(2)


def error_of_six_bits(x: Tensor, scale: Tensor) -> Tensor:
    codes = TORCH.codes(x, scale, None, -32, 31)
    return (x * (codes * scale[:, :, None] - x)).square().sum(2)


def assert_errors_equal(found: Tensor, expected: Tensor, energy: Tensor) -> None:
    """Assert that two errors are equal except for the last bit of the energy.

    Two candidates may be so similar that the order of a sum decides between them.
    """
    assert (found <= expected * (1 + 1e-4) + 1e-5 * energy).all()
    assert (expected <= found * (1 + 1e-4) + 1e-5 * energy).all()


def test_two_levels() -> None:
    x = numbers()
    found, expected = KERNELS.two_levels(x), TORCH.two_levels(x)
    energy = x.abs().pow(3).sum(2)
    assert_errors_equal(error_of_two_levels(x, *found), error_of_two_levels(x, *expected), energy)
    alike = torch.isclose(found[0], expected[0], rtol=1e-5, atol=0)
    assert alike.float().mean() > 0.99


def test_six_bits() -> None:
    x = numbers()
    found, expected = KERNELS.six_bits(x), TORCH.six_bits(x)
    assert_errors_equal(error_of_six_bits(x, found), error_of_six_bits(x, expected), x.pow(4).sum(2))
    assert torch.isclose(found, expected, rtol=1e-5, atol=0).float().mean() > 0.99


@pytest.mark.parametrize(("least", "most"), [(0, 15), (-32, 31), (-127, 127)])
def test_codes_are_the_same(least: int, most: int) -> None:
    x = numbers()
    x[2, 0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30])
    scales = x.nan_to_num(0, 0, 0).abs().amax(2) / most
    scales[3, 0] = 0.0
    for minimums in (None, -x.nan_to_num(0, 0, 0).amin(2)):
        expected = TORCH.codes(x, scales, minimums, least, most)
        assert torch.equal(KERNELS.codes(x, scales, minimums, least, most), expected)
    halves = torch.arange(-64, 64).float().view(1, 4, GROUP) / 2
    expected = TORCH.codes(halves, torch.ones(1, 4), None, least, most)
    assert torch.equal(KERNELS.codes(halves, torch.ones(1, 4), None, least, most), expected)


@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -torch.inf])
def test_a_group_that_is_not_finite_has_a_scale_that_is_not(strange: float) -> None:
    x = numbers(2, 3)
    x[1, 1, 5] = strange
    scale, minimum = KERNELS.two_levels(x)
    assert not (torch.isfinite(scale) & torch.isfinite(minimum))[1, 1]
    assert not torch.isfinite(KERNELS.six_bits(x))[1, 1]
    assert torch.isfinite(scale).sum() == torch.isfinite(KERNELS.six_bits(x)).sum() == 5


@pytest.mark.parametrize("quantize", [quantize_two_levels, quantize_int6, quantize_int8_groups])
@pytest.mark.parametrize("width", [256, 416])
def test_a_matrix_is_rounded_as_well(quantize, width: int) -> None:
    x = torch.randn(50, width, generator=torch.Generator().manual_seed(1))
    found, expected = quantize(x, KERNELS), quantize(x)
    assert (found.codes == expected.codes).float().mean() > 0.99
    errors = [(matrix.dequantized(torch.float32) - x).square().mean().sqrt().item() for matrix in (found, expected)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-4)
