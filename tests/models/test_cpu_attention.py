"""The compiled attention equals the reference, and a query has the same bits in every chunk, batch and layout."""

from __future__ import annotations

import random

import pytest
import torch

from models.backends import choice
from models.backends.attention_metadata import AttentionMetadata, KeyBias
from models.backends.choice import backend
from models.backends.cpu import operations as cpu_ops
from models.backends.cpu.attention_view import MAX_TILE_QUERIES, MIN_TILE_QUERIES, CpuAttentionView
from models.backends.torch.backend import TORCH

CPU = torch.device("cpu")
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
SHAPES = [(4, 4, 32), (6, 2, 64), (16, 1, 128), (8, 1, 256), (5, 5, 12), (3, 1, 80), (2, 2, 96), (8, 1, 576)]
SETTINGS = [
    {},
    {"window": 1},
    {"window": 6},
    {"window": 50},
    {"bias": "distance"},
    {"bias": "distance", "window": 5},
    {"bias": "key"},
    {"causal": False},
    {"causal": False, "window": 9},
    {"causal": False, "bias": "distance"},
    {"cap": 2.0},
    {"sinks": True},
    {"sinks": True, "window": 6},
    {"chunk": 7},
]
ROWS = [(1, 1), (2, 1), (4, 1), (33, 1), (9, 3), (40, 20), (8, 8), (9, 9), (70, 1), (70, 66), (131, 131), (300, 37)]

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def kernels():
    assert cpu_ops.available(), "build the kernels: pip install -e ."
    with choice.using("cpu"):
        yield


class Case:
    """Random queries, keys and values of several rows, stored both as ragged tensors and in a paged cache.

    lengths: number of keys of each row. settings: one of `SETTINGS`.
    """

    def __init__(self, dtype, shape, lengths, settings, block_size=4):
        self.heads, self.kv_heads, self.dim = shape
        self.dtype, self.lengths, self.block_size = dtype, lengths, block_size
        self.causal, self.window = settings.get("causal", True), settings.get("window")
        self.cap, self.chunk, self.scale = settings.get("cap"), settings.get("chunk"), self.dim**-0.5
        # The first sink is far below all scores, the last one far above, and the others are among them.
        self.sinks = torch.linspace(-200, 200, self.heads) if settings.get("sinks") else None
        if self.sinks is not None:
            self.sinks[1:-1] = torch.randn(max(self.heads - 2, 0))
        longest = max(lengths)
        self.bias = {
            None: None,
            "distance": torch.randn(self.heads, 2 * longest - 1).to(dtype),
            "key": KeyBias(torch.randn(self.heads, longest + 3).to(dtype)),
        }[settings.get("bias")]
        # Query, key and value are slices of one tensor, as after a merged projection.
        joined = torch.randn(sum(lengths), self.heads + 2 * self.kv_heads, self.dim).to(dtype)
        self.query, self.key, self.value = joined.split([self.heads, self.kv_heads, self.kv_heads], 1)
        counts = [-(-length // block_size) for length in lengths]
        self.tables = torch.zeros(len(lengths), max(counts), dtype=torch.int64)
        self.caches = torch.zeros(2, sum(counts), block_size, self.kv_heads, self.dim, dtype=dtype)
        for row, blocks in enumerate(torch.randperm(sum(counts)).split(counts)):
            self.tables[row, : len(blocks)], self.tables[row, len(blocks) :] = blocks, blocks[0]
            slots = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[: lengths[row]]
            for cache, side in zip(self.caches, (self.key, self.value), strict=True):
                cache.flatten(0, 1)[slots] = side.split(lengths)[row]

    def paged(self, rows, attention=None):
        """Paged attention of some queries of some rows: [queries, heads, dim].

        rows: index of the row, index of the first query, and index after the last query, for each range of queries.
            With a causal mask, the row has keys up to its last query only.
        attention: the attention function; None for that of the chosen backend.
        """
        metadata = AttentionMetadata(
            tuple(end - first for _, first, end in rows),
            tuple(end if self.causal else self.lengths[row] for row, _, end in rows),
            self.causal,
            self.window,
            self.bias,
            self.tables[[row for row, _, _ in rows]],
            self.block_size,
            chunk=self.chunk,
        )
        queries = self.query.split(self.lengths)
        query = torch.cat([queries[row][first:end] for row, first, end in rows])
        attention = attention or backend(query).paged_attention
        return attention(query, *self.caches, metadata, self.scale, self.cap, self.sinks)

    def ragged(self, attention=None):
        """Ragged attention of all queries of all rows. attention: function; None for that of the chosen backend."""
        metadata = AttentionMetadata(self.lengths, self.lengths, self.causal, self.window, self.bias, chunk=self.chunk)
        attention = attention or backend(self.query).ragged_attention
        return attention(self.query, self.key, self.value, metadata, self.scale, self.cap, self.sinks)


def close(found, expected):
    assert found.dtype == expected.dtype
    bound = BOUNDS[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=bound, rtol=bound)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_paged(dtype, settings, shape):
    case = Case(dtype, shape, tuple(keys for keys, _ in ROWS), settings)
    rows = [(row, keys - queries, keys) for row, (keys, queries) in enumerate(ROWS)]
    if not case.causal:  # Without a mask, the queries must be the last ones of their row.
        assert all(end == case.lengths[row] for row, _, end in rows)
    close(case.paged(rows), case.paged(rows, TORCH.paged_attention))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_ragged(dtype, settings, shape):
    case = Case(dtype, shape, (1, 3, 70, 16, 131, 3, 200), settings)
    close(case.ragged(), case.ragged(TORCH.ragged_attention))


@pytest.mark.parametrize("dtype", BOUNDS)
def test_ragged_queries_of_other_lengths_than_keys(dtype):
    lengths, key_lengths = (3, 90, 1), (40, 6, 170)
    query, keys = torch.randn(94, 4, 64).to(dtype), torch.randn(2, 216, 2, 64).to(dtype)
    metadata = AttentionMetadata(lengths, key_lengths)
    arguments = (query, *keys, metadata, 0.125)
    close(backend(arguments[0]).ragged_attention(*arguments), TORCH.ragged_attention(*arguments))


def chunks(length, rng):
    """Cut a prompt of `length` queries at random places. Returns the start and end of each chunk.

    Some chunks have one query, others more than a tile.
    """
    ends = sorted({rng.randrange(1, length) for _ in range(rng.randrange(6))} | {length})
    return list(zip([0, *ends], ends, strict=False))


def chunked(case, attention=None, seed=0):
    """Paged attention of all queries of all rows. Each call computes the next chunk of a random subset of the rows."""
    rng = random.Random(seed)
    cuts = [chunks(length, rng) for length in case.lengths]
    found = [[] for _ in case.lengths]
    while any(cuts):
        rows = [(row, *cut.pop(0)) for row, cut in enumerate(cuts) if cut and rng.random() < 0.8]
        if rows:
            rng.shuffle(rows)
            parts = case.paged(rows, attention).split([end - first for _, first, end in rows])
            for (row, _, _), part in zip(rows, parts, strict=True):
                found[row].append(part)
    return torch.cat([torch.cat(row) for row in found])


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("settings", [settings for settings in SETTINGS if settings.get("causal", True)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_query_has_the_same_bits_in_any_chunk_and_batch(dtype, settings, shape):
    case = Case(dtype, shape, (150, 7, 64, 90), settings)
    expected = case.ragged()
    offset = 0
    for row, length in enumerate(case.lengths):
        for query in (0, length // 2, length - 1):
            assert torch.equal(case.paged([(row, query, query + 1)])[0], expected[offset + query])
        offset += length
    for seed in range(3):
        assert torch.equal(chunked(case, seed=seed), expected)
    assert torch.equal(case.paged([(row, 0, length) for row, length in enumerate(case.lengths)]), expected)


def test_the_reference_has_other_bits_in_other_chunks():
    """Negative control: with the torch backend, results in chunks have other bits."""
    case = Case(torch.float32, (6, 2, 64), (150, 7, 64, 90), {})
    assert not torch.equal(chunked(case, TORCH.paged_attention), case.ragged(TORCH.ragged_attention))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("settings", [{"causal": False}, {"causal": False, "window": 9, "bias": "distance"}])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_text_has_the_same_bits_alone_and_in_a_batch(dtype, settings, shape):
    case = Case(dtype, shape, (150, 7, 64, 90), settings)
    together = case.ragged().split(case.lengths)
    sides = [side.split(case.lengths) for side in (case.query, case.key, case.value)]
    for row, length in enumerate(case.lengths):
        metadata = AttentionMetadata((length,), (length,), False, case.window, case.bias)
        alone = backend(case.query).ragged_attention(*(side[row] for side in sides), metadata, case.scale)
        assert torch.equal(alone, together[row])


@pytest.mark.parametrize("settings", [{}, {"causal": False}])
def test_bits_are_the_same_with_any_number_of_threads(settings):
    case = Case(torch.float32, (6, 2, 64), (150, 7, 64, 90), settings)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            found.append(case.ragged())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, found[0]) for result in found)


@pytest.mark.parametrize("settings", [{}, {"window": 6}, {"window": 50, "bias": "distance"}, {"causal": False}])
@pytest.mark.parametrize("shape", [(6, 2, 64), (16, 1, 128), (3, 1, 80), (5, 5, 12)])
def test_every_instruction_set(isa, dtype, shape, settings):
    """Attention is right with the kernels of every instruction set, also those that are not the default here."""
    case = Case(dtype, shape, (90, 7, 300), settings)
    found = case.ragged()
    close(found, case.ragged(TORCH.ragged_attention))
    if case.causal:
        assert torch.equal(chunked(case), found)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_a_long_context(dtype):
    """Attention is right with so many keys that a tile computes its scores in parts."""
    case = Case(dtype, (2, 1, 32), (9000,), {}, block_size=64)
    close(case.paged([(0, 8900, 9000)]), case.paged([(0, 8900, 9000)], TORCH.paged_attention))
    assert torch.equal(case.paged([(0, 8950, 8951)])[0], case.paged([(0, 8900, 9000)])[50])


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("settings", [{}, {"window": 6}])
@pytest.mark.parametrize("place", [32, 33])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("side", ["key", "value"])
def test_a_key_or_value_that_is_not_finite_affects_only_queries_that_see_it(dtype, settings, place, bad, side):
    """NaN or infinity in a key or value changes only queries that attend to it.

    The kernel must not multiply masked values by 0, because 0 times NaN is NaN.
    """
    case = Case(dtype, (6, 2, 64), (40, 70, 20), settings)
    clean, key = case.ragged(), 40 + place
    end = min(110, key + settings.get("window", 70))
    getattr(case, side)[key, 1, 5] = bad
    broken = case.ragged()
    affected = torch.zeros(130, 6, dtype=torch.bool)
    affected[key:end, 3:] = True
    assert torch.equal(broken[~affected], clean[~affected])
    if side == "value":
        assert not broken[key:end, 3:, 5].isfinite().any()
    else:
        assert broken[key:end, 3:].isnan().any()


@pytest.mark.parametrize("settings", [{}, {"window": 6}, {"causal": False}, {"cap": 2.0}])
@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_rounds_only_softmax_weights_and_results(settings, shape):
    """In bfloat16, only the softmax weights and the result are rounded: the error has no other part."""
    case = Case(torch.bfloat16, shape, (150, 7, 64, 90), settings)
    found = case.ragged().float()
    case.dtype = torch.float32
    case.query, case.key, case.value = case.query.float(), case.key.float(), case.value.float()
    exact = case.ragged(TORCH.ragged_attention)
    case.value = case.value.abs()
    weighted_abs = case.ragged(TORCH.ragged_attention)
    assert ((found - exact).abs() <= 2**-8 * (exact.abs() + weighted_abs) * 1.01 + 1e-5).all()


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("settings", [{}, {"window": 6}])
def test_bits_with_blocks_of_an_odd_size(dtype, settings):
    """Paged attention has the bits of ragged attention with blocks of five tokens.

    Keys that the kernel loads together then lie in different blocks.
    """
    case = Case(dtype, (6, 2, 64), (150, 7, 64, 90), settings, block_size=5)
    expected, offset = case.ragged(), 0
    for row, length in enumerate(case.lengths):
        for query in (0, 4, 5, length - 1):
            assert torch.equal(case.paged([(row, query, query + 1)])[0], expected[offset + query])
        offset += length
    assert torch.equal(chunked(case), expected)


@pytest.mark.parametrize(
    "threads, lengths, most",
    [
        (1, (1, 200, 64, 65, 3), 167),
        (2, (1, 200, 64, 65, 3), 84),
        (4, (1, 200, 64, 65, 3), MIN_TILE_QUERIES),
        (2, (700, 900), MAX_TILE_QUERIES),
    ],
)
def test_tiles_contain_every_query_once_and_end_with_the_row(threads, lengths, most, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    queries = AttentionMetadata(lengths, lengths, True).view(CpuAttentionView)
    tiles = sorted(queries.tiles.tolist())
    assert [first + count for first, count, _ in tiles] == [first for first, _, _ in tiles[1:]] + [sum(lengths)]
    assert max(count for _, count, _ in tiles) == most
    starts = {sum(lengths[:row]) for row in range(len(lengths))}
    assert starts <= {first for first, _, _ in tiles}
    assert all(row == max(start for start in starts if start <= first) for first, _, row in tiles)


def test_metadata_with_another_bias_shares_its_cpu_view():
    metadata = AttentionMetadata((3,), (3,), True, score_bias=torch.zeros(1, 5))
    assert metadata.with_bias(torch.ones(1, 5)).view(CpuAttentionView) is metadata.view(CpuAttentionView)
