"""A cache of int8 or fp8: its codes equal those of the reference, and attention over it equals exact attention."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.cuda.kernels import codes as conversions
from models.backends.cuda.kernels import decode_attention, rounded_cache, tile_attention
from models.backends.cuda.kernels.attention_arguments import Scores
from models.backends.rounded_slots import FP8, RoundedSlots, quantize_heads
from models.backends.torch.backend import TORCH
from tests.cuda.kernels import cases
from tests.cuda.kernels.cases import DEVICE, Heads

KINDS = pytest.mark.parametrize("kind", [torch.int8, FP8], ids=["int8", "fp8"])


@triton.jit
def _convert_kernel(source, target, COUNT: tl.constexpr, KIND: tl.constexpr):
    places = tl.arange(0, COUNT)
    x = tl.load(source + places)
    if KIND == "to fp8":
        tl.store(target + places, conversions.fp8_bits(x).to(tl.uint8))
    else:
        numbers = conversions.code_numbers(x, target.dtype.element_ty, KIND)
        tl.store(target + places, numbers)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_code_becomes_its_number(dtype: torch.dtype) -> None:
    bits = torch.arange(256, device=DEVICE)
    codes = bits.to(torch.uint8)
    found = torch.empty(256, dtype=dtype, device=DEVICE)
    _convert_kernel[(1,)](codes, found, COUNT=256, KIND="fp8")
    numbers = codes.view(FP8).float()
    finite = numbers.isfinite()
    assert int(finite.sum()) == 254
    assert torch.equal(found.float()[finite] * conversions.CODE_FACTOR["fp8"], numbers[finite])
    _convert_kernel[(1,)](codes.view(torch.int8), found, COUNT=256, KIND="int8")
    assert torch.equal(found.float(), codes.view(torch.int8).float())


def test_numbers_are_rounded_to_fp8_as_torch_does() -> None:
    """All fp8 numbers, the middles between two of them, and numbers just beside the middles."""
    exact = torch.arange(127, dtype=torch.uint8).view(FP8).float()
    middles = (exact[1:] + exact[:-1]) / 2
    beside = [middles * (1 + shift) for shift in (1e-6, -1e-6)]
    positive = torch.cat([exact, middles, *beside, torch.rand(200) * 448, torch.rand(200) * 0.02])
    x = torch.cat([positive, -positive]).to(DEVICE)
    x = torch.nn.functional.pad(x, (0, 2048 - len(x)))
    found = torch.empty(2048, dtype=torch.uint8, device=DEVICE)
    _convert_kernel[(1,)](x, found, COUNT=2048, KIND="to fp8", enable_fp_fusion=False)
    assert torch.equal(found, x.to(FP8).view(torch.uint8))


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_written_codes_and_scales_equal_the_reference(kind: torch.dtype, dtype: torch.dtype) -> None:
    x = torch.randn(40, 3, 20, device=DEVICE).to(dtype)
    x[3], x[4, 1], x[5, 2, 3], x[6, 0, 1] = 0.0, 1e-38, torch.nan, -torch.inf
    x[7] *= 1e30
    sides = [RoundedSlots.zeros(12, 4, 3, width, DEVICE, kind) for width in (20, 12)]
    slots = torch.randperm(48, device=DEVICE)[:40]
    slots[9] = -1
    # Keys and values are slices of one tensor, as after a merged projection.
    joined = torch.cat([x, x.flip(0)], 1)
    key, value = joined[:, :3], joined[:, 3:, :12]
    rounded_cache.write_rounded_slots(*sides, slots, key, value)
    kept = slots >= 0
    for side, written in zip(sides, (key, value), strict=True):
        codes, scales = quantize_heads(written, kind)
        assert torch.equal(side.codes.flatten(0, 1)[slots[kept]], codes.view(side.codes.dtype)[kept])
        found = side.scales[slots[kept] // 4, :, slots[kept] % 4]
        assert torch.equal(found.nan_to_num(-1.0), scales[kept].nan_to_num(-1.0)) and scales.isnan().sum() > 0
    assert int((sides[0].scales != 0).sum()) == 39 * 3 - 4, "a row of zeros, a tiny head, and nothing in other slots"


@KINDS
def test_keys_that_are_values_are_written_once(kind: torch.dtype) -> None:
    side, x = RoundedSlots.zeros(2, 4, 1, 24, DEVICE, kind), torch.randn(3, 1, 24, device=DEVICE)
    rounded_cache.write_rounded_slots(side, side, torch.tensor([1, 4, 7], device=DEVICE), x, x)
    codes, scales = quantize_heads(x, kind)
    assert torch.equal(side.read(torch.tensor([1, 4, 7], device=DEVICE), torch.float32), _numbers(codes, scales))


def _numbers(codes: Tensor, scales: Tensor) -> Tensor:
    return codes.float() * scales[..., None].float()


def _rounded(side: Tensor, kind: torch.dtype) -> RoundedSlots:
    """The blocks of a cache, rounded. Numbers that are not finite give the scale NaN."""
    blocks, size, heads, width = side.shape
    slots = RoundedSlots.zeros(blocks, size, heads, width, side.device, kind)
    slots.write(torch.arange(blocks * size, device=side.device), side.flatten(0, 1))
    return slots


CASES = {
    "grouped heads": Heads(torch.float16, 6, 2, 24, 40),
    "window, cap, sinks, distance bias": Heads(torch.float32, 3, 1, 80, 80, 90, None, 3.0, True, "distance"),
    "bfloat16, chunk, key bias": Heads(torch.bfloat16, 2, 1, 16, 16, None, 60, None, False, "key"),
}


@KINDS
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("queries", [(1, 1), (70, 3)], ids=["decode", "prefill"])
def test_attention_equals_that_over_the_rounded_numbers(name: str, kind: torch.dtype, queries: Sequence[int]) -> None:
    case, key_lens = CASES[name], [300, 7]
    key, value, tables = cases.paged_cache(case, key_lens, 16)
    # A factor for each slot, as scales of one size would hide that a kernel takes those of other slots.
    key, value = (
        side * torch.linspace(0.5, 2.0, 16, device=DEVICE)[:, None, None].to(side.dtype) for side in (key, value)
    )
    sides = _rounded(key, kind), _rounded(value, kind)
    query = case.random(case.generator(), sum(queries), case.heads, case.key_dim)
    scores = cases.scores(case, max(key_lens), causal=True)
    starts = [0, *accumulate(queries)]
    if queries == (1, 1):
        firsts = decode_attention.partial_starts(key_lens)
        rows = decode_attention.DecodeRows(tables, cases.numbers(key_lens), cases.numbers(firsts[:-1]))
        memory = decode_attention.Partials.empty(firsts[-1], 2, case.heads, case.value_dim, DEVICE)
        actual = decode_attention.paged_decode_attention(query, *sides, rows, scores, 2, memory)
    else:
        befores = [length - count for length, count in zip(key_lens, queries, strict=True)]
        spans = tile_attention.spans_of_queries(np.array(queries), np.array(key_lens))
        tiles = tile_attention.TileRows(
            *map(cases.numbers, (starts, key_lens, befores, spans.tolist())), block_tables=tables
        )
        actual = tile_attention.tile_attention(query, *sides, tiles, scores)
    everything = torch.arange(len(key), device=DEVICE)
    exact = [side.blocks(everything, torch.float32) for side in sides]
    facts = {"query_lens": tuple(queries), "key_lens": tuple(key_lens), "block_tables": tables, "block_size": 16}
    cases.assert_near(actual, cases.expected(query, *exact, scores, True, **facts))


@KINDS
def test_the_reference_attends_to_the_rounded_numbers(kind: torch.dtype) -> None:
    key, value, tables = cases.paged_cache(Heads(torch.float32, 6, 2, 24, 24), [50], 16)
    sides = _rounded(key, kind), _rounded(value, kind)
    query, facts = torch.randn(1, 6, 24, device=DEVICE), AttentionMetadata((1,), (50,), True, None, None, tables, 16)
    exact = [side.blocks(torch.arange(len(key), device=DEVICE), torch.float32) for side in sides]
    found = TORCH.paged_attention(query, *sides, facts, 0.2)
    torch.testing.assert_close(found, TORCH.paged_attention(query, *exact, facts, 0.2))


@KINDS
def test_a_number_that_is_not_finite_fails_its_own_row_alone(kind: torch.dtype) -> None:
    case, key_lens = Heads(torch.float16, 2, 1, 16, 16), [40, 70]
    key, value, tables = cases.paged_cache(case, key_lens, 16)
    key[tables[0, 1], 3, 0, 5] = torch.inf
    sides = _rounded(key, kind), _rounded(value, kind)
    query = case.random(case.generator(), 2, 2, 16)
    firsts = decode_attention.partial_starts(key_lens)
    rows = decode_attention.DecodeRows(tables, cases.numbers(key_lens), cases.numbers(firsts[:-1]))
    memory = decode_attention.Partials.empty(firsts[-1], 2, 2, 16, DEVICE)
    found = decode_attention.paged_decode_attention(query, *sides, rows, Scores(0.25), 1, memory)
    assert bool(found[0].isnan().any()) and bool(found[1].isfinite().all())
