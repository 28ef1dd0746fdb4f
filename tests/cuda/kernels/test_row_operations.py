"""Norms, rotation, cache writes and gated activations, compared with the torch reference."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.backends.cuda.kernels import activation as activations
from models.backends.cuda.kernels import norms, rotary
from models.backends.torch import operations as reference
from models.backends.torch.activations import ACTIVATIONS
from tests.cuda.kernels.cases import DEVICE, TOLERANCES

DTYPES = st.sampled_from([torch.float32, torch.float16])


def _random(dtype, *shape):
    return torch.randn(shape).to(dtype).to(DEVICE)


def _assert_near(actual, expected):
    tolerance = TOLERANCES[expected.dtype] / 2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=6, derandomize=True)
@given(DTYPES, st.integers(0, 5), st.integers(1, 300))
def test_norms(dtype, rows, width):
    x, y = (_random(dtype, rows, width + 3)[:, :width] for _ in range(2))
    weight, bias = _random(dtype, width), _random(dtype, width)
    for name in ("rms_norm", "rms_norm_from_one"):
        _assert_near(getattr(norms, name)(x, weight, 1e-5), getattr(reference, name)(x, weight, 1e-5))
        pairs = zip(
            getattr(norms, f"add_{name}")(x, y, weight, 1e-5),
            getattr(reference, f"add_{name}")(x, y, weight, 1e-5),
            strict=True,
        )
        for actual, expected in pairs:
            _assert_near(actual, expected)
    for of_all in (bias, None):
        _assert_near(norms.layer_norm(x, weight, of_all, 1e-5), reference.layer_norm(x, weight, of_all, 1e-5))
    total, normalized = norms.add_layer_norm(x, y, weight, bias, 1e-5)
    assert torch.equal(total, x + y)
    _assert_near(normalized, reference.layer_norm(x + y, weight, bias, 1e-5))


def test_norms_of_more_dimensions_and_into_memory():
    x, weight = _random(torch.float16, 3, 4, 32), _random(torch.float16, 32)
    out = torch.empty_like(x)
    assert norms.rms_norm(x, weight, 1e-6, out) is out
    _assert_near(out, reference.rms_norm(x, weight, 1e-6))


@settings(max_examples=10, derandomize=True)
@given(
    DTYPES,
    st.integers(1, 4),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 2]),
    st.sampled_from([(16, 16), (24, 8), (10, 6)]),
    st.booleans(),
    st.booleans(),
)
def test_rotation_and_cache_write(dtype, tokens, group, kv_heads, dims, interleaved, with_positions):
    (head_dim, dim), heads = dims, group * kv_heads
    merged = _random(dtype, tokens, (heads + kv_heads) * head_dim + kv_heads * 12)
    query, key, value = merged.split([heads * head_dim, kv_heads * head_dim, kv_heads * 12], 1)
    query, key = query.unflatten(1, (heads, head_dim)), key.unflatten(1, (kv_heads, head_dim))
    value = value.unflatten(1, (kv_heads, 12))
    table = torch.rand(20, 1, dim // 2, device=DEVICE) * 6
    positions = torch.randint(0, 20, (tokens,), device=DEVICE) if with_positions else None
    angles = SimpleNamespace(cos=table.cos(), sin=table.sin())
    if positions is None:
        angles.cos, angles.sin = angles.cos[:tokens], angles.sin[:tokens]
    rows = SimpleNamespace(
        cos=angles.cos if positions is None else angles.cos[positions],
        sin=angles.sin if positions is None else angles.sin[positions],
    )
    rotated = reference.rotate(key, rows, interleaved)
    _assert_near(rotary.rotate(key, angles.cos, angles.sin, positions, interleaved), rotated)
    slots = torch.randperm(12, device=DEVICE)[:tokens]
    caches = [torch.zeros(3, 4, kv_heads, width, dtype=dtype, device=DEVICE) for width in (head_dim, 12)]
    expected = [cache.clone() for cache in caches]
    reference.write_slots(*expected, slots, rotated, value)
    out = rotary.rotate_and_write(query, key, value, angles.cos, angles.sin, positions, interleaved, *caches, slots)
    _assert_near(out, reference.rotate(query, rows, interleaved))
    _assert_near(caches[0], expected[0])
    assert torch.equal(caches[1], expected[1])


def test_write_slots_leaves_out_negative_slots():
    key, value = _random(torch.float16, 3, 2, 8), _random(torch.float16, 3, 2, 6)
    caches = [torch.zeros(2, 4, 2, width, dtype=torch.float16, device=DEVICE) for width in (8, 6)]
    rotary.write_slots(*caches, torch.tensor([5, -1, 0], device=DEVICE), key, value)
    for cache, side in zip(caches, (key, value), strict=True):
        flat = cache.flatten(0, 1)
        assert torch.equal(flat[5], side[0]) and torch.equal(flat[0], side[2])
        assert int(flat.any(-1).any(-1).sum()) == 2


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_activations(name):
    for dtype in (torch.float32, torch.float16):
        merged = _random(dtype, 2, 140) * 3
        gate, up = merged.chunk(2, 1)
        _assert_near(activations.gated_activation(gate, up, name), ACTIVATIONS[name](gate) * up)
