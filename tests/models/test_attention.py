"""The attention of the torch backend and attention metadata equal the definition of attention, written as loops."""

from __future__ import annotations

import math
import random

import pytest
import torch

from models.backends.attention_metadata import AttentionMetadata
from models.backends.choice import backend
from models.backends.torch.attention_view import TorchAttentionView

HEADS, KV_HEADS, DIM, SCALE = 4, 2, 8, 0.3
CPU = torch.device("cpu")


def by_definition(query, key, value, first_position, causal, window, bias, cap=None, sinks=None, chunk=None):
    """Attention of one row by its definition. Returns a tensor like `query`.

    query: [q, heads, dim]. key, value: [k, kv_heads, dim]. bias: [heads, 2 * length - 1], by distance.
    first_position: position of the first query.
    """
    output = torch.zeros_like(query)
    for index in range(query.shape[0]):
        position = first_position + index
        for head in range(query.shape[1]):
            shared = head * key.shape[1] // query.shape[1]
            scores = []
            for other in range(key.shape[0]):
                distance = other - position
                hidden = (causal and distance > 0) or (window is not None and abs(distance) >= window)
                hidden = hidden or (chunk is not None and other // chunk != position // chunk)
                score = SCALE * (query[index, head] @ key[other, shared]).item()
                score = score if cap is None else cap * math.tanh(score / cap)
                if bias is not None:
                    score += bias[head, distance + bias.shape[1] // 2].item()
                scores.append(-torch.inf if hidden else score)
            if sinks is not None:
                scores.append(sinks[head].item())
            shares = torch.softmax(torch.tensor(scores), 0)[: key.shape[0]]
            output[index, head] = shares @ value[:, shared]
    return output


def groups_of(metadata):
    return metadata.view(TorchAttentionView, CPU, torch.float32).groups


def random_rows(query_lens, key_lens, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(lens, heads):
        return [torch.randn(length, heads, DIM, generator=generator) for length in lens]

    return draw(query_lens, HEADS), draw(key_lens, KV_HEADS), draw(key_lens, KV_HEADS)


@pytest.mark.parametrize("cap", [None, 0.5])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 3), (False, 3)])
def test_ragged(causal, window, biased, cap):
    lens = (3, 5, 1, 3, 5, 5)
    queries, keys, values = random_rows(lens, lens)
    bias = torch.randn(HEADS, 2 * max(lens) - 1) if biased else None
    metadata = AttentionMetadata(lens, lens, causal, window, bias)
    ragged = [torch.cat(side) for side in (queries, keys, values)]
    output = backend(ragged[0]).ragged_attention(*ragged, metadata, SCALE, cap).split(lens)
    for ours, query, key, value in zip(output, queries, keys, values, strict=True):
        expected = by_definition(query, key, value, 0, causal, window, bias, cap)
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("settings", [{"sinks": torch.tensor([-3.0, 0.0, 0.7, 90.0])}, {"chunk": 3}], ids=str)
@pytest.mark.parametrize("window", [None, 3])
def test_sinks_and_chunks(settings, window):
    """Attention with sinks, and in chunks, is right for whole texts, and for last queries with cached keys."""
    sinks, chunk = settings.get("sinks"), settings.get("chunk")
    window = window if chunk is None else None
    lens = (3, 8, 1, 13)
    queries, keys, values = random_rows(lens, lens)
    sides = [torch.cat(side) for side in (queries, keys, values)]
    metadata = AttentionMetadata(lens, lens, True, window, chunk=chunk)
    outputs = backend(sides[0]).ragged_attention(*sides, metadata, SCALE, None, sinks).split(lens)
    caches = torch.zeros(2, 16, 4, KV_HEADS, DIM)
    tables = torch.arange(16).view(4, 4)
    for row, length in enumerate(lens):
        for side, source in enumerate((keys, values)):
            caches[side].view(4, 16, KV_HEADS, DIM)[row, :length] = source[row]
    last = AttentionMetadata((1,) * 4, lens, True, window, None, tables, 4, chunk=chunk)
    ends = backend(torch.stack([query[-1] for query in queries])).paged_attention(
        torch.stack([query[-1] for query in queries]), *caches, last, SCALE, None, sinks
    )
    for row, (query, key, value) in enumerate(zip(queries, keys, values, strict=True)):
        expected = by_definition(query, key, value, 0, True, window, None, None, sinks, chunk)
        torch.testing.assert_close(outputs[row], expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ends[row], expected[-1], atol=1e-5, rtol=1e-5)


def test_ragged_cross_attention_with_keys_of_other_lengths():
    query_lens, key_lens = (3, 1, 3), (4, 6, 4)
    queries, keys, values = random_rows(query_lens, key_lens)
    metadata = AttentionMetadata(query_lens, key_lens)
    ragged = [torch.cat(side) for side in (queries, keys, values)]
    output = backend(ragged[0]).ragged_attention(*ragged, metadata, SCALE).split(query_lens)
    for ours, query, key, value in zip(output, queries, keys, values, strict=True):
        torch.testing.assert_close(ours, by_definition(query, key, value, 0, False, None, None), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 1), (True, 5), (True, 6)])
def test_paged(causal, window, biased):
    """Paged attention is right for decode rows, chunks and whole prompts. Blocks that must not be read contain NaN."""
    block_size = 4
    key_lens = (1, 4, 5, 17, 30, 9, 6, 13, 3, 8)
    query_lens = (1, 1, 1, 1, 1, 4, 6, 2, 3, 1)
    queries, keys, values = random_rows(query_lens, key_lens)
    bias = torch.randn(HEADS, 2 * max(key_lens) - 1) if biased else None
    counts = [-(-length // block_size) for length in key_lens]
    order = list(range(sum(counts) + 3))
    random.Random(5).shuffle(order)
    caches = torch.full((2, len(order), block_size, KV_HEADS, DIM), torch.nan)
    tables = torch.full((len(key_lens), max(counts)), order.pop())
    for row, (count, key, value) in enumerate(zip(counts, keys, values, strict=True)):
        for index in range(count):
            block = order.pop()
            tables[row, index] = block
            for side, source in enumerate((key, value)):
                part = source[index * block_size : (index + 1) * block_size]
                caches[side, block] = 7.0
                caches[side, block, : len(part)] = part
    metadata = AttentionMetadata(query_lens, key_lens, causal, window, bias, tables, block_size)
    output = (
        backend(torch.cat(queries))
        .paged_attention(torch.cat(queries), caches[0], caches[1], metadata, SCALE)
        .split(query_lens)
    )
    for row, ours in enumerate(output):
        first = key_lens[row] - query_lens[row]
        expected = by_definition(queries[row], keys[row], values[row], first, causal, window, bias)
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_decode_rows_are_gathered_with_little_padding():
    key_lens = (1, 2, 3, 64, 70, 500, 501, 1000)
    metadata = AttentionMetadata(
        (1,) * 8, key_lens, True, block_tables=torch.zeros(8, 250, dtype=torch.int64), block_size=4
    )
    gathered = sum(group.rows * group.key_len for group in groups_of(metadata))
    assert sum(group.rows for group in groups_of(metadata)) == 8
    assert gathered < 2 * sum(key_lens) + 8 * 4


def test_a_window_reads_no_older_blocks():
    tables = torch.arange(50)[None]
    metadata = AttentionMetadata((1,), (200,), True, 6, block_tables=tables, block_size=4)
    (group,) = groups_of(metadata)
    assert group.keys.tolist() == [[48, 49]]
