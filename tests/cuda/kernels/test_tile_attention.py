"""Attention of ragged rows of queries, compared with the torch reference."""

from __future__ import annotations

from itertools import accumulate

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.backends.cuda.kernels import tile_attention as kernels
from models.backends.cuda.kernels.attention_arguments import Scores
from tests.cuda.kernels import cases

LENGTHS = st.lists(st.tuples(st.integers(0, 150), st.integers(1, 150)), min_size=1, max_size=3)
"""Keys before the first query, and queries of each row."""


def _starts(lens):
    return [0, *accumulate(lens)]


@settings(max_examples=12, derandomize=True)
@given(cases.heads(), LENGTHS, st.sampled_from([8, 32]))
def test_prefill_equals_the_reference(case, lengths, block_size):
    query_lens, key_lens = [count for _, count in lengths], [sum(row) for row in lengths]
    key, value, tables = cases.paged_cache(case, key_lens, block_size)
    query = case.random(case.generator(), sum(query_lens), case.heads, case.key_dim)
    scores = cases.scores(case, max(key_lens), causal=True)
    rows = kernels.TileRows(
        cases.numbers(_starts(query_lens)),
        cases.numbers(key_lens),
        cases.numbers([before for before, _ in lengths]),
        max(query_lens),
        block_tables=tables,
    )
    actual = kernels.tile_attention(query, key, value, rows, scores)
    facts = {"query_lens": tuple(query_lens), "key_lens": tuple(key_lens)}
    facts |= {"block_tables": tables, "block_size": block_size}
    cases.assert_near(actual, cases.expected(query, key, value, scores, True, **facts))


@settings(max_examples=10, derandomize=True)
@given(cases.heads(causal=False), st.lists(st.integers(1, 150), min_size=1, max_size=3), st.booleans())
def test_encoders_equal_the_reference(case, lengths, causal):
    if causal and case.bias == "key":
        causal = False
    tokens, generator = sum(lengths), case.generator()
    query = case.random(generator, tokens, case.heads, case.key_dim)
    key = case.random(generator, tokens, case.kv_heads, case.key_dim)
    value = case.random(generator, tokens, case.kv_heads, case.value_dim)
    scores = cases.scores(case, max(lengths), causal)
    starts = cases.numbers(_starts(lengths))
    rows = kernels.TileRows(starts, cases.numbers(lengths), starts[:-1] * 0, max(lengths), key_starts=starts[:-1])
    actual = kernels.tile_attention(query, key, value, rows, scores)
    facts = {"query_lens": tuple(lengths), "key_lens": tuple(lengths)}
    cases.assert_near(actual, cases.expected(query, key, value, scores, False, **facts))


def test_cross_attention_with_shared_keys():
    case, generator = cases.Heads(torch.float16, 2, 2, 16, 16), torch.Generator().manual_seed(1)
    query, key = case.random(generator, 9, 2, 16), case.random(generator, 50, 2, 16)
    rows = kernels.TileRows(
        cases.numbers([0, 4, 9]), cases.numbers([30, 20]), cases.numbers([0, 0]), 5, key_starts=cases.numbers([20, 0])
    )
    actual = kernels.tile_attention(query, key, key, rows, Scores(0.25, causal=False))
    facts = {"query_lens": (4, 5), "key_lens": (30, 20), "key_starts": (20, 0), "query_starts": (0, 0)}
    cases.assert_near(actual, cases.expected(query, key, key, Scores(0.25, causal=False), False, **facts))


def test_other_rows_change_no_bit():
    case, lengths = cases.Heads(torch.float16, 2, 1, 16, 16, window=70), [150, 30]
    generator = case.generator()
    query, key = case.random(generator, 180, 2, 16), case.random(generator, 180, 1, 16)
    scores = cases.scores(case, 150, causal=True)

    def attend(first, end, lens):
        starts = cases.numbers(_starts(lens))
        rows = kernels.TileRows(starts, cases.numbers(lens), starts[:-1] * 0, max(lens), key_starts=starts[:-1])
        return kernels.tile_attention(query[first:end], key[first:end], key[first:end], rows, scores)

    together = attend(0, 180, lengths)
    assert torch.equal(attend(0, 150, [150]), together[:150]) and torch.equal(attend(150, 180, [30]), together[150:])
    query[:150] = torch.nan
    assert torch.equal(attend(0, 180, lengths)[150:], together[150:])
