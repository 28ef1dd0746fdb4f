"""Norms, rotation, cache writes and gated activations, compared with the torch reference."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.backends.cuda.kernels import activation as activations
from models.backends.cuda.kernels import norms, rotary
from models.backends.torch.activations import ACTIVATIONS
from models.backends.torch.backend import TORCH
from tests.cuda.kernels.cases import DEVICE, DTYPES, TOLERANCES


def _random(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape).to(dtype).to(DEVICE)


def _assert_near(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCES[expected.dtype] / 2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def _check_norms(dtype: torch.dtype, rows: int, width: int, size: float, eps: float = 1e-3) -> None:
    """size: of the numbers. Squares of large ones exceed float16; eps is more than the squares of small ones."""
    x, y = (_random(dtype, rows, width + 3)[:, :width] * size for _ in range(2))
    weight, bias = _random(dtype, width), _random(dtype, width)
    for name in ("rms_norm", "rms_norm_from_one"):
        _assert_near(getattr(norms, name)(x, weight, eps), getattr(TORCH, name)(x, weight, eps))
        actual, expected = (getattr(kernels, f"add_{name}")(x, y, weight, eps) for kernels in (norms, TORCH))
        assert torch.equal(actual[0], expected[0])
        _assert_near(actual[1], expected[1])
    for of_all in (bias, None):
        _assert_near(norms.layer_norm(x, weight, of_all, eps), TORCH.layer_norm(x, weight, of_all, eps))
        total, normalized = norms.add_layer_norm(x, y, weight, of_all, eps)
        assert torch.equal(total, x + y)
        _assert_near(normalized, TORCH.layer_norm(x + y, weight, of_all, eps))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "size"), [(3, 150, 300.0), (2, 1, 1.0), (0, 8, 1.0), (2, 64, 0.02)])
def test_norms(dtype: torch.dtype, rows: int, width: int, size: float) -> None:
    _check_norms(dtype, rows, width, size)


@pytest.mark.many_shapes
@settings(max_examples=20, derandomize=True)
@given(st.sampled_from(DTYPES), st.integers(0, 5), st.integers(1, 1100), st.sampled_from([0.02, 1.0, 300.0]))
def test_norms_of_many_shapes(dtype: torch.dtype, rows: int, width: int, size: float) -> None:
    _check_norms(dtype, rows, width, size)


def test_norms_of_more_dimensions_and_into_memory() -> None:
    x, weight = _random(torch.float16, 3, 4, 32), _random(torch.float16, 32)
    out = torch.empty_like(x)
    assert norms.rms_norm(x, weight, 1e-6, out) is out
    _assert_near(out, TORCH.rms_norm(x, weight, 1e-6))


def _check_rotation(
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    kv_heads: int,
    dims: tuple[int, int],
    interleaved: bool,
    with_positions: bool,
) -> None:
    """dims: of a head, and those that rotate."""
    head_dim, dim = dims
    merged = _random(dtype, tokens, (heads + kv_heads) * head_dim + kv_heads * 12)
    query, key, value = merged.split([heads * head_dim, kv_heads * head_dim, kv_heads * 12], 1)
    query, key = query.unflatten(1, (heads, head_dim)), key.unflatten(1, (kv_heads, head_dim))
    value = value.unflatten(1, (kv_heads, 12))
    table = torch.rand(20, 1, dim // 2, device=DEVICE) * 6
    positions = torch.randint(0, 20, (tokens,), device=DEVICE) if with_positions else None
    cos, sin = table.cos(), table.sin()
    index = slice(tokens) if positions is None else positions
    rows = SimpleNamespace(cos=cos[index], sin=sin[index])
    tables = rotary.RotaryTables(cos, sin, positions, interleaved)
    for x in (query, key):
        _assert_near(rotary.rotate(x, tables), TORCH.rotate(x, rows, interleaved))
    slots = torch.randperm(12, device=DEVICE)[:tokens]
    caches = [torch.zeros(3, 4, kv_heads, width, dtype=dtype, device=DEVICE) for width in (head_dim, 12)]
    expected = [cache.clone() for cache in caches]
    TORCH.write_slots(*expected, slots, key, value)
    rotary.write_slots(*caches, slots, key, value)
    assert all(map(torch.equal, caches, expected))
    # The same by one kernel, with a token that is not stored.
    rotated, stored = rotary.rotate(key, tables), [cache.zero_() for cache in caches]
    slots[0] = -1
    expected = [cache.clone() for cache in stored]
    rotary.write_slots(*expected, slots, rotated, value)
    both = merged[:, : (heads + kv_heads) * head_dim].unflatten(1, (heads + kv_heads, head_dim))
    queries = rotary.rotate_and_store(both, value, tables, *stored, slots)
    assert torch.equal(queries, rotary.rotate(query, tables)) and all(map(torch.equal, stored, expected))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_and_cache_write(interleaved: bool) -> None:
    _check_rotation(torch.float16, 3, 6, 2, (24, 20), interleaved, True)
    _check_rotation(torch.float32, 2, 5, 5, (10, 6), interleaved, False)


@pytest.mark.many_shapes
@settings(max_examples=20, derandomize=True)
@given(
    st.sampled_from(DTYPES),
    st.integers(1, 4),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([(16, 16), (24, 8), (10, 6), (80, 32)]),
    st.booleans(),
    st.booleans(),
)
def test_rotation_of_many_shapes(
    dtype: torch.dtype,
    tokens: int,
    group: int,
    kv_heads: int,
    dims: tuple[int, int],
    interleaved: bool,
    with_positions: bool,
) -> None:
    _check_rotation(dtype, tokens, group * kv_heads, kv_heads, dims, interleaved, with_positions)


def test_write_slots_leaves_out_negative_slots() -> None:
    key, value = _random(torch.float16, 3, 2, 8), _random(torch.float16, 3, 2, 6)
    # The first block is not part of the caches, and must not be written.
    memory = [torch.zeros(3, 4, 2, width, dtype=torch.float16, device=DEVICE) for width in (8, 6)]
    rotary.write_slots(memory[0][1:], memory[1][1:], torch.tensor([5, -1, 0], device=DEVICE), key, value)
    for cache, side in zip(memory, (key, value), strict=True):
        assert not bool(cache[0].any())
        flat = cache[1:].flatten(0, 1)
        assert torch.equal(flat[5], side[0]) and torch.equal(flat[0], side[2])
        assert int(flat.any(-1).any(-1).sum()) == 2


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_activations(name: str) -> None:
    # Two programs for a row: the second has 12 columns.
    merged = _random(torch.float16, 2, 2 * 1036) * 3
    gate, up = merged.chunk(2, 1)
    _assert_near(activations.gated_activation(gate, up, name), ACTIVATIONS[name](gate) * up)
    gate, up = _random(torch.float32, 1, 70), _random(torch.float32, 1, 70)
    _assert_near(activations.gated_activation(gate, up, name), ACTIVATIONS[name](gate) * up)
