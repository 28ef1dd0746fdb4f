"""Attention of ragged rows of queries, compared with the torch reference."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.backends.cuda.kernels import tile_attention as kernels
from models.backends.cuda.kernels.attention_arguments import Scores
from tests.cuda.kernels import cases
from tests.cuda.kernels.cases import Heads

LENGTHS = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 150)), min_size=1, max_size=3)
"""Keys before the first query, and queries of each row."""


def _starts(lens: list[int]) -> list[int]:
    return [0, *accumulate(lens)]


def _spans(query_lens: list[int], key_lens: list[int]) -> Tensor:
    """The spans of a step, with unused places at the beginning, in the middle and at the end."""
    spans = kernels.spans_of_queries(np.array(query_lens), np.array(key_lens)).tolist()
    for place in (len(spans), len(spans) // 2, 0):
        spans.insert(place, [0, kernels.NO_QUERIES])
    return cases.numbers(spans)


def _check_prefill(case: Heads, lengths: list[tuple[int, int]], block_size: int) -> None:
    query_lens, key_lens = [count for _, count in lengths], [sum(row) for row in lengths]
    key, value, tables = cases.paged_cache(case, key_lens, block_size)
    query = case.random(case.generator(), sum(query_lens), case.heads, case.key_dim)
    scores = cases.scores(case, max(key_lens), causal=True)
    rows = kernels.TileRows(
        cases.numbers(_starts(query_lens)),
        cases.numbers(key_lens),
        cases.numbers([before for before, _ in lengths]),
        _spans(query_lens, key_lens),
        block_tables=tables,
    )
    actual = kernels.tile_attention(query, key, value, rows, scores)
    facts = {"query_lens": tuple(query_lens), "key_lens": tuple(key_lens)}
    facts |= {"block_tables": tables, "block_size": block_size}
    cases.assert_near(actual, cases.expected(query, key, value, scores, True, **facts))


def _check_encoder(case: Heads, lengths: list[int], causal: bool) -> None:
    tokens, generator = sum(lengths), case.generator()
    query = case.random(generator, tokens, case.heads, case.key_dim)
    key = case.random(generator, tokens, case.kv_heads, case.key_dim)
    value = case.random(generator, tokens, case.kv_heads, case.value_dim)
    scores = cases.scores(case, max(lengths), causal)
    starts = cases.numbers(_starts(lengths))
    spans = _spans(lengths, lengths)
    rows = kernels.TileRows(starts, cases.numbers(lengths), starts[:-1] * 0, spans, key_starts=starts[:-1])
    actual = kernels.tile_attention(query, key, value, rows, scores)
    facts = {"query_lens": tuple(lengths), "key_lens": tuple(lengths)}
    cases.assert_near(actual, cases.expected(query, key, value, scores, False, **facts))


@pytest.mark.parametrize(
    ("case", "lengths", "block_size"),
    [
        (Heads(torch.float16, 3, 1, 24, 40, sinks=True), [(0, 150), (100, 1), (40, 0)], 8),
        (Heads(torch.float32, 2, 2, 16, 16, window=50, cap=3.0, bias="distance"), [(90, 70), (0, 1)], 32),
        (Heads(torch.float16, 2, 1, 16, 80, chunk=60, bias="key"), [(30, 140)], 16),
    ],
    ids=["grouped heads and sinks", "window, cap, distance bias", "chunk and key bias"],
)
def test_prefill(case: Heads, lengths: list[tuple[int, int]], block_size: int) -> None:
    _check_prefill(case, lengths, block_size)


@pytest.mark.parametrize(
    ("case", "lengths"),
    [
        # Query 127, the last of a tile, sees key 192, the first of a tile.
        (Heads(torch.float16, 2, 2, 24, 24, window=66), [200, 1, 30]),
        (Heads(torch.float32, 2, 1, 16, 8, bias="distance"), [7, 60]),
    ],
    ids=["window to both sides", "distance bias"],
)
def test_encoder(case: Heads, lengths: list[int]) -> None:
    _check_encoder(case, lengths, causal=False)


@pytest.mark.many_shapes
@settings(max_examples=25, derandomize=True)
@given(cases.heads(), LENGTHS, st.sampled_from([8, 32]))
def test_prefill_equals_the_reference(case: Heads, lengths: list[tuple[int, int]], block_size: int) -> None:
    assume(any(count for _, count in lengths))
    _check_prefill(case, lengths, block_size)


@pytest.mark.many_shapes
@settings(max_examples=20, derandomize=True)
@given(cases.heads(causal=False), st.lists(st.integers(1, 150), min_size=1, max_size=3), st.booleans())
def test_encoders_equal_the_reference(case: Heads, lengths: list[int], causal: bool) -> None:
    _check_encoder(case, lengths, causal and case.bias != "key")


def test_cross_attention_with_shared_keys() -> None:
    case, generator = Heads(torch.float16, 2, 2, 16, 16), torch.Generator().manual_seed(1)
    query, key = case.random(generator, 9, 2, 16), case.random(generator, 50, 2, 16)
    starts, key_lens, zeros, key_starts = map(cases.numbers, ([0, 4, 9], [30, 20], [0, 0], [20, 0]))
    rows = kernels.TileRows(starts, key_lens, zeros, _spans([4, 5], [30, 20]), key_starts)
    actual = kernels.tile_attention(query, key, key, rows, Scores(0.25, causal=False))
    facts = {"query_lens": (4, 5), "key_lens": (30, 20), "key_starts": (20, 0), "query_starts": (0, 0)}
    cases.assert_near(actual, cases.expected(query, key, key, Scores(0.25, causal=False), False, **facts))


@pytest.mark.parametrize("sinks", [False, True])
def test_queries_without_keys_give_zeros(sinks: bool) -> None:
    case = Heads(torch.float16, 2, 1, 16, 16, sinks=sinks)
    query, key = (case.random(case.generator(), count, heads, 16) for count, heads in ((5, 2), (7, 1)))
    scores = cases.scores(case, 7, causal=False)

    def attend(key_lens: list[int], query_starts: list[int]) -> Tensor:
        zeros = cases.numbers([0] * len(key_lens))
        spans = _spans(np.diff(query_starts).tolist(), key_lens)
        rows = kernels.TileRows(cases.numbers(query_starts), cases.numbers(key_lens), zeros, spans, key_starts=zeros)
        return kernels.tile_attention(query, key, key, rows, scores)

    result = attend([0, 7], [0, 3, 5])
    assert not bool(result[:3].any())
    assert torch.equal(result[3:], attend([7, 7], [0, 3, 5])[3:])


def test_other_rows_change_no_bit() -> None:
    case, lengths = Heads(torch.float16, 2, 1, 16, 16, window=70), [150, 30]
    generator = case.generator()
    query, key = case.random(generator, 180, 2, 16), case.random(generator, 180, 1, 16)
    scores = cases.scores(case, 150, causal=True)

    def attend(first: int, end: int, lens: list[int]) -> Tensor:
        starts = cases.numbers(_starts(lens))
        rows = kernels.TileRows(starts, cases.numbers(lens), starts[:-1] * 0, _spans(lens, lens), starts[:-1])
        return kernels.tile_attention(query[first:end], key[first:end], key[first:end], rows, scores)

    together = attend(0, 180, lengths)
    assert torch.equal(attend(0, 150, [150]), together[:150]) and torch.equal(attend(150, 180, [30]), together[150:])
    query[:150] = torch.nan
    assert torch.equal(attend(0, 180, lengths)[150:], together[150:])


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=20))
def test_spans_contain_each_query_once(lengths: list[tuple[int, int]]) -> None:
    query_lens, key_lens = np.array([count for _, count in lengths]), np.array([sum(row) for row in lengths])
    spans = kernels.spans_of_queries(query_lens, key_lens)
    expected = {(row, number) for row, count in enumerate(query_lens) for number in range(-(-count // 64))}
    assert len(spans) == len(expected) and {(row, number) for row, number in spans.tolist()} == expected
    last = np.minimum((spans[:, 1] + 1) * kernels.SPAN_QUERIES, query_lens[spans[:, 0]])
    visible = (key_lens - query_lens)[spans[:, 0]] + last
    assert (np.diff(visible) <= 0).all(), "spans that see many keys come first"
    used = int((query_lens > 0).sum())
    assert len(spans) <= kernels.max_spans(int(query_lens.sum()), used)


@pytest.mark.parametrize(
    "case",
    [
        Heads(torch.float16, 1, 1, 16, 16),
        Heads(torch.float32, 1, 1, 16, 16),
        Heads(torch.float32, 1, 1, 16, 16, window=50),
        Heads(torch.float32, 1, 1, 16, 16, chunk=48, sinks=True),
    ],
    ids=["float16", "float32", "window", "chunks and sinks"],
)
@pytest.mark.parametrize("cut", [1, 77, 130])
def test_the_cut_of_a_prompt_changes_no_bit(case: Heads, cut: int) -> None:
    """A prompt computed in two steps gives the bits of one step."""
    key, value, tables = cases.paged_cache(case, [200], 32)
    query, scores = case.random(case.generator(), 200, 1, 16), cases.scores(case, 200, causal=True)

    def attend(first: int, end: int) -> Tensor:
        numbers = [cases.numbers([number]) for number in (end, first)]
        spans = _spans([end - first], [end])
        rows = kernels.TileRows(cases.numbers([0, end - first]), *numbers, spans, block_tables=tables)
        return kernels.tile_attention(query[first:end], key, value, rows, scores)

    assert torch.equal(torch.cat([attend(0, cut), attend(cut, 200)]), attend(0, 200))
