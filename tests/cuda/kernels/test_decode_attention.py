"""Attention of one query per row, compared with the torch reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.backends.cuda.kernels import decode_attention as kernels
from models.backends.cuda.kernels.attention_arguments import Scores
from tests.cuda.kernels import cases
from tests.cuda.kernels.cases import Heads


def _attend(
    query: Tensor, key: Tensor, value: Tensor, tables: Tensor, key_lens: list[int], scores: Scores, splits: int
) -> Tensor:
    starts = kernels.partial_starts(key_lens)
    # One more than needed, which must not be written.
    partials = kernels.Partials.empty(starts[-1] + 1, len(key_lens), query.shape[1], value.shape[3], query.device)
    for part in partials[:3]:
        part.fill_(torch.nan)
    rows = kernels.DecodeRows(tables, cases.numbers(key_lens), cases.numbers(starts[:-1]))
    result = kernels.paged_decode_attention(query, key, value, rows, scores, splits, partials)
    assert all(bool(part[-1].isnan().all()) for part in partials[:3])
    assert not bool(partials.arrivals.any())
    return result


def _check(case: Heads, key_lens: list[int], block_size: int, splits: int) -> None:
    key, value, tables = cases.paged_cache(case, key_lens, block_size)
    query = case.random(case.generator(), len(key_lens), case.heads, case.key_dim)
    scores = cases.scores(case, max(key_lens), causal=True)
    actual = _attend(query, key, value, tables, key_lens, scores, splits)
    facts = {"query_lens": (1,) * len(key_lens), "key_lens": tuple(key_lens)}
    facts |= {"block_tables": tables, "block_size": block_size}
    cases.assert_near(actual, cases.expected(query, key, value, scores, True, **facts))


@pytest.mark.parametrize(
    ("case", "key_lens", "block_size", "splits"),
    [
        (Heads(torch.float16, 6, 2, 24, 40), [300, 1, 257], 8, 2),
        (Heads(torch.float32, 3, 1, 80, 8, window=270, cap=3.0, sinks=True, bias="distance"), [600, 5], 32, 3),
        (Heads(torch.float16, 20, 1, 16, 16, chunk=100, sinks=True, bias="key"), [130, 100], 16, 1),
        # More chunks than are merged at a time.
        (Heads(torch.float16, 1, 1, 16, 16), [17 * 256 + 3], 32, 5),
        (Heads(torch.float16, 1, 1, 16, 16, window=300), [17 * 256 + 3], 32, 1),
    ],
    ids=[
        "grouped heads",
        "window, cap, sinks, distance bias",
        "20 heads, chunk, key bias",
        "many chunks",
        "late window",
    ],
)
def test_some_shapes(case: Heads, key_lens: list[int], block_size: int, splits: int) -> None:
    _check(case, key_lens, block_size, splits)


@pytest.mark.many_shapes
@settings(max_examples=25, derandomize=True)
@given(
    cases.heads(),
    st.lists(st.integers(1, 600), min_size=1, max_size=3),
    st.sampled_from([8, 32]),
    st.integers(1, 4),
)
def test_equals_the_reference(case: Heads, key_lens: list[int], block_size: int, splits: int) -> None:
    _check(case, key_lens, block_size, splits)


@pytest.mark.parametrize("window", [None, 300])
def test_splits_and_other_rows_change_no_bit(window: int | None) -> None:
    case, key_lens = Heads(torch.float16, 2, 1, 16, 16, window=window, sinks=True), [700, 40, 600]
    key, value, tables = cases.paged_cache(case, key_lens, 16)
    query = case.random(case.generator(), 3, 2, 16)
    scores = cases.scores(case, 700, causal=True)
    together = _attend(query, key, value, tables, key_lens, scores, 1)
    for splits in (2, 3):
        assert torch.equal(_attend(query, key, value, tables, key_lens, scores, splits), together)
    for row in range(3):
        part = slice(row, row + 1)
        alone = _attend(query[part], key, value, tables[part], key_lens[part], scores, 1)
        assert torch.equal(alone, together[part])


def test_unused_rows_and_slots_are_not_read() -> None:
    case, key_lens = Heads(torch.float32, 2, 1, 16, 16), [20, 0]
    key, value, tables = cases.paged_cache(case, key_lens, 16)
    query = case.random(case.generator(), 2, 2, 16)
    before = _attend(query, key, value, tables, key_lens, Scores(0.25), 2)
    key[tables[0, 1], 4:] = value[tables[0, 1], 4:] = torch.nan
    tables[1] = 1 << 40
    after = _attend(query, key, value, tables, key_lens, Scores(0.25), 2)
    assert torch.equal(before, after) and bool(after.isfinite().all()) and not bool(after[1].any())


def test_keys_before_the_window_are_not_read() -> None:
    case = Heads(torch.float32, 1, 1, 16, 16, window=40)
    key, value, tables = cases.paged_cache(case, [300], 16)
    query, scores = case.random(case.generator(), 1, 1, 16), cases.scores(case, 300, causal=True)
    before = _attend(query, key, value, tables, [300], scores, 2)
    # Blocks before the window may belong to another row by now.
    key[tables[0, :16]] = value[tables[0, :16]] = torch.nan
    assert torch.equal(_attend(query, key, value, tables.int(), [300], scores, 2), before)


def test_latent_heads_share_one_cache() -> None:
    case = Heads(torch.float16, 3, 1, 36, 36)
    key, _, tables = cases.paged_cache(case, [90], 32)
    query = case.random(case.generator(), 1, 3, 36)
    actual = _attend(query, key, key, tables, [90], Scores(0.2), 1)
    facts = {"query_lens": (1,), "key_lens": (90,), "block_tables": tables, "block_size": 32}
    cases.assert_near(actual, cases.expected(query, key, key, Scores(0.2), True, **facts))


def test_splits_fill_the_device() -> None:
    assert kernels.num_splits(1, 8, 8192, 132) == 32
    assert kernels.num_splits(1, 8, 100_000, 132) == 97
    assert kernels.num_splits(64, 8, 1024, 132) == 1
    assert kernels.num_splits(64, 8, 4096, 132) == 3
    assert kernels.num_splits(256, 8, 8192, 132) == 1
    assert kernels.partial_starts([1, 256, 0, 257]) == [0, 1, 2, 2, 4]


def test_heads_that_share_keys_are_divided_among_programs() -> None:
    """All heads of one key-value head in one program would need more registers than there are: the tile is limited."""
    case = Heads(torch.float16, 40, 1, 16, 512)
    key, value, tables = cases.paged_cache(case, [33], 16)
    query = case.random(case.generator(), 1, 40, 16)
    facts = {"query_lens": (1,), "key_lens": (33,), "block_tables": tables, "block_size": 16}
    actual = _attend(query, key, value, tables, [33], Scores(0.25), 1)
    cases.assert_near(actual, cases.expected(query, key, value, Scores(0.25), True, **facts))
