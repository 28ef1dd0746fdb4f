"""Products of experts and with quantised weights, compared with torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.backends.cuda.kernels import experts as kernels
from models.backends.cuda.kernels import quantized_linear
from models.backends.torch.activations import activate
from models.backends.torch.quantization import quantize_int4, quantize_int8
from tests.cuda.kernels.cases import DEVICE, TOLERANCES

DTYPES = st.sampled_from([torch.float32, torch.float16])


def _random(dtype, *shape):
    return (torch.randn(shape) * 0.3).to(dtype).to(DEVICE)


def _assert_near(actual, expected):
    tolerance = TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=10, derandomize=True)
@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 3))
def test_tiles_have_every_pair_once(tokens, num_experts, choices):
    choices = min(choices, num_experts)
    experts = torch.rand(tokens, num_experts).argsort(-1)[:, :choices].to(DEVICE)
    tiles = kernels.group_by_expert(experts, num_experts)
    seen = []
    for expert, start, end in zip(tiles.tile_experts, tiles.tile_starts, tiles.tile_ends, strict=True):
        pairs = tiles.order[start:end]
        assert end - start <= tiles.tile and bool((experts.flatten()[pairs] == expert).all())
        seen += pairs.tolist()
    assert sorted(seen) == list(range(tokens * choices))


@settings(max_examples=6, derandomize=True)
@given(DTYPES, st.integers(1, 20), st.booleans(), st.sampled_from([None, 0.4]), st.booleans())
def test_experts(dtype, tokens, with_bias, limit, with_shared):
    num_experts, choices, hidden, width = 4, 2, 40, 24
    x, shares = _random(dtype, tokens, hidden), torch.rand(tokens, choices, device=DEVICE)
    experts = torch.rand(tokens, num_experts).argsort(-1)[:, :choices].to(DEVICE)
    inner, outer = _random(dtype, num_experts, 2 * width, hidden), _random(dtype, num_experts, hidden, width)
    biases = _random(dtype, num_experts, 2 * width) if with_bias else None
    outer_biases = _random(dtype, num_experts, hidden) if with_bias else None
    shared = _random(dtype, tokens, hidden) if with_shared else None
    gate = _random(dtype, tokens, 1) if with_shared else None
    tiles = kernels.group_by_expert(experts, num_experts)
    offset = 0.0 if limit is None else 1.0
    middle = kernels.gated_expert_linear(x, inner, biases, tiles, "silu", limit, offset)
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


def test_experts_without_gate_and_other_tokens():
    x, weight = _random(torch.float16, 30, 32), _random(torch.float16, 3, 48, 32)
    experts = torch.rand(30, 3).argsort(-1)[:, :2].to(DEVICE)
    actual = kernels.expert_linear(x, weight, None, kernels.group_by_expert(experts, 3), "gelu")
    pairs = zip(x.repeat_interleave(2, 0), experts.flatten(), strict=True)
    products = torch.stack([weight[expert].float() @ row.float() for row, expert in pairs])
    _assert_near(actual, torch.nn.functional.gelu(products))


@settings(max_examples=6, derandomize=True)
@given(DTYPES, st.integers(0, 40), st.integers(1, 70), st.sampled_from([8, 33, 200]), st.booleans())
def test_int8_linear(dtype, rows, columns, inputs, with_bias):
    x, weight = _random(dtype, rows, inputs + 8)[:, :inputs], _random(torch.float32, columns, inputs)
    bias = _random(dtype, columns) if with_bias else None
    codes, scales = quantize_int8(weight)
    actual = quantized_linear.int8_linear(x, quantized_linear.Int8Matrix(codes, scales), bias)
    expected = x.float() @ (codes.float() * scales[:, None]).T
    _assert_near(actual, expected if bias is None else expected + bias.float())


@settings(max_examples=6, derandomize=True)
@given(DTYPES, st.integers(0, 40), st.integers(1, 70), st.sampled_from([32, 64, 192]), st.booleans())
def test_int4_linear(dtype, rows, columns, group, with_bias):
    x, weight = _random(dtype, rows, 384), _random(torch.float32, columns, 384)
    bias = _random(dtype, columns) if with_bias else None
    matrix = quantize_int4(weight, group)
    packed = quantized_linear.pack_int4((matrix.codes + 8).to(torch.uint8))
    actual = quantized_linear.int4_linear(
        x, quantized_linear.Int4Matrix(packed, matrix.scales.half(), None, group), bias
    )
    expected = x.float() @ matrix.dequantized(torch.float32).T
    _assert_near(actual, expected if bias is None else expected + bias.float())


@pytest.mark.parametrize("rows", [1, 100])
def test_int4_linear_with_minimums(rows):
    x, codes = _random(torch.float16, rows, 128), torch.randint(0, 16, (50, 128), dtype=torch.uint8).to(DEVICE)
    scales, minimums = torch.rand(50, 4).half().to(DEVICE) / 8, _random(torch.float16, 50, 4)
    weight = quantized_linear.Int4Matrix(quantized_linear.pack_int4(codes), scales, minimums, 32)
    values = (codes.float() - 8).unflatten(1, (4, 32)) * scales.float()[..., None] - minimums.float()[..., None]
    out = torch.empty(rows, 50, dtype=torch.float16, device=DEVICE)
    assert quantized_linear.int4_linear(x, weight, None, out) is out
    _assert_near(out, x.float() @ values.flatten(1).half().float().T)
