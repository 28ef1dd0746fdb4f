"""Experts with weights of 8 and 4 bits and rounded rows, compared in float64 with the numbers that are rounded to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.backends import choice, linear_weights
from models.backends.cuda import product_choice
from models.backends.cuda.kernels import matrices, rounded_rows
from models.backends.cuda.kernels.expert_epilogue import EpilogueSettings
from models.backends.cuda.kernels.expert_tiles import group_by_expert
from models.backends.cuda.kernels.experts import expert_linear
from models.backends.torch.quantization import quantize_fp8, quantize_int4, quantize_int8, round_rows
from models.config import FeedForwardConfig, MixtureOfExpertsConfig, RouterConfig
from tests.cuda.kernels.cases import DEVICE
from tests.cuda.kernels.test_rounded_linear import rows_of
from weights.quantized_matrix import QuantizedMatrix

EXPERTS, CHOICES, COLUMNS = 3, 2, 40


def matrix_of(
    kind: str, columns: int, inputs: int, group: int
) -> tuple[matrices.ByteMatrix | matrices.Int4Matrix, Tensor]:
    """Random weights of all experts, and the numbers that they stand for: [experts, columns, inputs], float64."""
    dense = torch.randn(EXPERTS * columns, inputs, device=DEVICE)

    def divided(x: Tensor) -> Tensor:
        return x.view(EXPERTS, columns, -1)

    if kind == "int4":
        found = quantize_int4(dense, group, True)
        codes = divided(matrices.pack_int4(found.codes.to(torch.uint8)))
        minimums = divided(found.minimums - 8 * found.scales)
        return matrices.Int4Matrix(codes, divided(found.scales), minimums, group), divided(
            found.dequantized(torch.float32)
        ).double()
    parts = dense.unflatten(1, (-1, group)).flatten(0, 1)
    codes, scales = quantize_int8(parts) if kind == "int8" else quantize_fp8(parts)
    numbers = (codes if kind == "int8" else codes.view(torch.float8_e4m3fn)).float() * scales[:, None]
    matrix = matrices.ByteMatrix(divided(codes.view(EXPERTS * columns, -1)), divided(scales), group)
    return matrix, divided(numbers.view(EXPERTS * columns, -1)).double()


def chosen_experts(tokens: int) -> Tensor:
    return torch.rand(tokens, EXPERTS).argsort(-1)[:, :CHOICES].contiguous().to(DEVICE)


def check(actual: Tensor, rows: Tensor, numbers: Tensor, experts: Tensor, bias: Tensor) -> None:
    """rows: [pairs, inputs], float64. Compare products of pairs within float32 sums of terms of their size."""
    own = numbers[experts.flatten()]
    expected = torch.einsum("pi,pci->pc", rows, own) + bias.double()[experts.flatten()]
    size = torch.einsum("pi,pci->pc", rows.abs(), own.abs())
    assert bool(((actual.double() - expected).abs() <= 1e-6 * size + 1e-6).all())


@pytest.mark.parametrize(
    ("kind", "terms", "tokens", "inputs", "group"),
    [
        ("int8", 2, 5, 300, 300),
        ("int8", 1, 70, 256, 128),
        ("int8", 2, 3, 192, 32),
        ("fp8", 1, 9, 256, 128),
        ("int4", 2, 9, 192, 32),
        ("int4", 2, 100, 320, 320),
        ("int4", 1, 3, 256, 128),
    ],
)
def test_pairs_are_multiplied_by_their_experts(kind: str, terms: int, tokens: int, inputs: int, group: int) -> None:
    x, bias, experts = (
        rows_of(tokens, inputs).contiguous(),
        torch.randn(EXPERTS, COLUMNS, device=DEVICE),
        chosen_experts(tokens),
    )
    matrix, numbers = matrix_of(kind, COLUMNS, inputs, group)
    codes, tiles = "fp8" if kind == "fp8" else "int8", group_by_expert(experts, EXPERTS)
    of_tokens = expert_linear(rounded_rows.round_rows(x, codes, terms), matrix, bias, tiles, dtype=torch.float32)
    expected = round_rows(x, codes, terms, rounded_rows.GROUP).double()
    check(of_tokens, expected.repeat_interleave(CHOICES, 0), numbers, experts, bias)
    # The last products have a row for each pair.
    pairs = rows_of(tokens * CHOICES, inputs).contiguous()
    of_pairs = expert_linear(rounded_rows.round_rows(pairs, codes, terms), matrix, bias, tiles, dtype=torch.float32)
    check(of_pairs, round_rows(pairs, codes, terms, rounded_rows.GROUP).double(), numbers, experts, bias)


def test_gates_are_those_of_rounded_rows() -> None:
    x, experts = rows_of(7, 256).contiguous(), chosen_experts(7)
    matrix, numbers = matrix_of("int8", 2 * COLUMNS, 256, 256)
    rounded = rounded_rows.round_rows(x, "int8", 2)
    settings = EpilogueSettings("silu", gated=True, limit=3.0, up_offset=1.0)
    actual = expert_linear(rounded, matrix, None, group_by_expert(experts, EXPERTS), settings, torch.float32)
    rows = round_rows(x, "int8", 2, rounded_rows.GROUP).double().repeat_interleave(CHOICES, 0)
    gate, up = torch.einsum("pi,pci->pc", rows, numbers[experts.flatten()]).chunk(2, 1)
    expected = torch.nn.functional.silu(gate.clamp(max=3.0)) * (up.clamp(-3.0, 3.0) + 1.0)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-3)


def test_a_token_that_is_not_finite_fails_alone() -> None:
    x, experts = rows_of(6, 256).contiguous(), chosen_experts(6)
    x[2, 200] = torch.inf
    matrix, _ = matrix_of("int8", COLUMNS, 256, 256)
    rounded = rounded_rows.round_rows(x, "int8", 2)
    actual = expert_linear(rounded, matrix, None, group_by_expert(experts, EXPERTS), dtype=torch.float32)
    actual = actual.unflatten(0, (6, CHOICES))
    assert bool(actual[2].isnan().all()) and bool(actual[[0, 1, 3, 4, 5]].isfinite().all())


@pytest.mark.parametrize("kind", ["int8", "int8-fast", "int4-32"])
@torch.inference_mode()
def test_experts_round_their_rows_if_each_has_many(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A layer of experts rounds from the measured number of rows of one expert on, in both of its products."""
    asked: list[tuple[str, bool]] = []

    def rounds_from(kind: str, device: torch.device, of_experts: bool) -> int:
        asked.append((kind, of_experts))
        return 4 if of_experts else 1 << 62

    monkeypatch.setattr(product_choice, "rounds_from", rounds_from)
    applied: list[bool] = []
    apply = product_choice.RowRounding.apply

    def watched(self, x, rows):
        found = apply(self, x, rows)
        applied.append(not isinstance(found, Tensor))
        return found

    monkeypatch.setattr(product_choice.RowRounding, "apply", watched)
    expert = FeedForwardConfig(72, "silu", gated=True, bias=True)
    config = MixtureOfExpertsConfig(expert, EXPERTS, CHOICES, RouterConfig(normalized=True))
    shapes = {"inner": (EXPERTS * 144, 96), "outer": (EXPERTS * 96, 72)}
    found: dict[str, tuple[QuantizedMatrix, Tensor]] = {}
    for name, shape in shapes.items():
        dense = torch.randn(shape, device=DEVICE) * 0.2
        if kind == "int4-32":
            matrix = quantize_int4(dense, 32)
        else:
            codes, scales = quantize_int8(dense)
            matrix = QuantizedMatrix(codes, 8, shape[1], scales[:, None])
        found[name] = matrix, torch.randn(shape[0], device=DEVICE)
    x, shares = torch.randn(6, 96, device=DEVICE), torch.rand(6, CHOICES, device=DEVICE)
    experts = chosen_experts(6)

    def mixed(rows: int, batch_invariant: bool = False) -> Tensor:
        with choice.using("cuda", batch_invariant=batch_invariant):
            packer = linear_weights.packer(torch.float32, DEVICE, kind)
            stacked = linear_weights.stack_experts(packer, packer, *found.values(), config)
            return stacked.mix(x[:rows], shares[:rows], experts[:rows].contiguous(), None, None)

    expected = mixed(6, batch_invariant=True)
    assert applied == [False, False]
    few, many = mixed(5), mixed(6)
    assert applied[2:] == [False, False, True, True], "10 pairs of three experts, and 12"
    assert {of_experts for _, of_experts in asked} == {False, True}
    torch.testing.assert_close(few, expected[:5], rtol=1e-5, atol=1e-5)
    error = float((many - expected).abs().max() / expected.abs().max())
    assert 0 < error < (0.05 if kind == "int8-fast" else 2e-4)
