"""Attention over an int8 KV cache equals exact attention over the rounded values, with the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from models.backends import choice
from models.backends.choice import backend
from models.backends.rounded_slots import RoundedSlots, quantize_heads
from models.backends.torch.backend import TORCH
from models.checkpoint.loader import load_model
from models.config import AttentionConfig
from models.steps.kv_cache import KVCache
from tests.engine.tiny_checkpoints import DECODERS, SEQ2SEQ
from tests.models.test_cpu_attention import CPU, ROWS, SETTINGS, Case, chunked, kernels
from tests.parity.checkpoints import write_model
from tests.parity.paged import Rows, one_by_one, one_shot
from tests.parity.paged import chunked as chunked_rows

__all__ = ["kernels"]

pytestmark = pytest.mark.usefixtures("kernels")
SHAPES = [(4, 4, 32), (6, 2, 64), (16, 1, 128), (5, 5, 12), (3, 1, 80), (2, 1, 7)]
FURTHER = ["deepseek-v3", "gemma4", "llama4"]
"""Test models with keys that serve as values, with keys of another layer, and with attention in chunks."""
TEXTS = [[5 + 7 * place % 41 for place in range(length)] for length in (24, 1, 13, 70)]


class Int8Case(Case):
    """A case whose paged cache has int8 keys and values."""

    def __init__(self, dtype, shape, lengths, settings, block_size=4):
        super().__init__(dtype, shape, lengths, settings, block_size)
        self.exact = self.caches
        num_blocks = self.caches.shape[1]
        sides = [RoundedSlots.zeros(num_blocks, block_size, self.kv_heads, self.dim, CPU) for _ in range(2)]
        slots = torch.arange(num_blocks * block_size)
        backend(self.key).write_slots(*sides, slots, *(side.flatten(0, 1) for side in self.caches))
        self.caches = sides

    def rounded(self) -> Case:
        """The same case with a float32 cache that has exactly the values of the int8 cache."""
        case = Case.__new__(Case)
        case.__dict__.update(self.__dict__)
        everything = torch.arange(self.caches[0].codes.shape[0])
        case.caches = [side.blocks(everything, torch.float32) for side in self.caches]
        case.query, case.bias = self.query.float(), self.bias
        if isinstance(self.bias, torch.Tensor):
            case.bias = self.bias.float()
        return case


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_equals_the_reference(settings, shape):
    """Attention over the int8 cache equals the reference with an error of about 1e-4 of the largest value.

    Queries are rounded to 15 bits, and softmax weights to 16 bits.
    """
    case = Int8Case(torch.float32, shape, tuple(keys for keys, _ in ROWS), settings)
    rows = [(row, keys - queries, keys) for row, (keys, queries) in enumerate(ROWS)]
    found, exact = case.paged(rows), case.rounded().paged(rows, TORCH.paged_attention)
    torch.testing.assert_close(found, exact, atol=4e-4, rtol=4e-4)
    torch.testing.assert_close(case.paged(rows, TORCH.paged_attention), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(6, 2, 64), (3, 1, 80)])
def test_every_instruction_set(isa, shape):
    case = Int8Case(torch.bfloat16, shape, (70, 9), {"window": 50})
    rows = [(0, 3, 70), (1, 8, 9)]
    exact = case.rounded().paged(rows, TORCH.paged_attention)
    torch.testing.assert_close(case.paged(rows).float(), exact, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", [{}, {"window": 6}, {"window": 90}, {"bias": "distance"}, {"cap": 2.0}])
@pytest.mark.parametrize("shape", [(6, 2, 64), (16, 1, 128), (5, 5, 12)])
def test_a_query_has_the_same_bits_in_any_chunk_and_batch(dtype, settings, shape):
    case = Int8Case(dtype, shape, (150, 7, 64, 90), settings, block_size=5)
    whole = case.paged([(row, 0, length) for row, length in enumerate(case.lengths)])
    offset = 0
    for row, length in enumerate(case.lengths):
        for query in (0, length // 2, length - 1):
            assert torch.equal(case.paged([(row, query, query + 1)])[0], whole[offset + query])
        offset += length
    for seed in range(2):
        assert torch.equal(chunked(case, seed=seed), whole)


def test_a_long_context_and_any_number_of_threads():
    """Attention is right with a long context and with any number of threads.

    The scores of all heads exceed the scratch memory of a tile, so the kernel computes queries in parts.
    """
    case = Int8Case(torch.float32, (4, 2, 32), (9000,), {}, block_size=64)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(case.paged([(0, 8900, 9000)]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, found[0]) for result in found)
    assert torch.equal(case.paged([(0, 8950, 8951)])[0], found[0][50])
    torch.testing.assert_close(
        found[0], case.rounded().paged([(0, 8900, 9000)], TORCH.paged_attention), atol=4e-4, rtol=4e-4
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_written_codes_and_scales_equal_the_reference(dtype):
    x = torch.randn(40, 3, 20).to(dtype)
    x[3], x[4, 1], x[5, 2, 3], x[6, 0, 1] = 0.0, 1e-38, torch.nan, -torch.inf
    x[7] *= 1e30
    sides = [RoundedSlots.zeros(12, 4, 3, 20, CPU) for _ in range(2)]
    slots = torch.randperm(48)[:40]
    # Keys and values are slices of one tensor, as after a merged projection.
    joined = torch.cat([x, x.flip(0)], 1)
    backend(joined).write_slots(*sides, slots, joined[:, :3], joined[:, 3:])
    for side, written in zip(sides, (x, x.flip(0)), strict=True):
        codes, scales = quantize_heads(written)
        assert torch.equal(side.codes.flatten(0, 1)[slots], codes)
        found = side.scales[slots // 4, :, slots % 4]
        assert torch.equal(found.nan_to_num(-1.0), scales.nan_to_num(-1.0)) and scales.isnan().sum() == 2
        numbers = side.blocks(torch.arange(12), torch.float32).flatten(0, 1)[slots]
        finite = written.isfinite().all(-1)
        assert ((numbers - written.float())[finite].abs() <= scales.float()[finite][:, None] / 2 * 1.01 + 1e-30).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("side", [0, 1])
def test_a_number_that_is_not_finite_affects_only_queries_that_see_it(bad, side):
    case = Int8Case(torch.float32, (6, 2, 64), (40, 70, 20), {"window": 9})
    rows = [(row, 0, length) for row, length in enumerate(case.lengths)]
    clean = case.paged(rows)
    block = int(case.tables[1, 33 // 4])
    case.caches[side].scales[block, 1, 33 % 4] = torch.nan
    broken = case.paged(rows)
    affected = torch.zeros(130, 6, dtype=torch.bool)
    affected[40 + 33 : 40 + 42, 3:] = True
    assert torch.equal(broken[~affected], clean[~affected]) and not broken[affected].isfinite().any()
    query = case.query.clone()
    case.query[50, 2, 3] = bad
    assert not case.paged(rows)[50, 2].isfinite().any() and torch.equal(case.query[51], query[51])


def test_memory_copies_and_clearing():
    config = [_attention(2, 64), _attention(3, 20)]
    cache = KVCache(config, 6, 4, torch.int8, CPU)
    assert sum(side.nbytes for side in cache.tensors) == 6 * KVCache.block_bytes(config, 4, torch.int8)
    assert KVCache.block_bytes(config[:1], 4, torch.int8) < 0.52 * KVCache.block_bytes(config[:1], 4, torch.bfloat16)
    for tensor in cache.tensors:
        tensor.copy_(torch.randint(1, 9, tensor.shape))
    before = [tensor.clone() for tensor in cache.tensors]
    cache.copy_blocks([(1, 3, 0, 4), (2, 5, 0, 4)])
    for tensor, old in zip(cache.tensors, before, strict=True):
        assert torch.equal(tensor[[3, 5]], old[[1, 2]]) and torch.equal(tensor[[0, 1, 2, 4]], old[[0, 1, 2, 4]])
    cache.clear([1, 3])
    assert all(not tensor[[1, 3]].any() and tensor[[2, 5]].all() for tensor in cache.tensors)


def _attention(kv_heads: int, dim: int) -> AttentionConfig:
    return AttentionConfig(num_heads=kv_heads, num_kv_heads=kv_heads, head_dim=dim, scale=dim**-0.5, causal=True)


def texts_of(directory, name):
    architecture, config = (DECODERS | SEQ2SEQ)[name]
    write_model(directory, config, architecture)
    return [text[::-1] for text in TEXTS] if name in SEQ2SEQ else None


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gemma3", "t5", "bart", "bloom", "gemma2", *FURTHER])
@torch.inference_mode()
def test_hidden_states_have_the_same_bits_alone_batched_and_in_chunks(tmp_path, name):
    sources = texts_of(tmp_path, name)
    model = load_model(tmp_path, torch.float32, CPU).transformer

    def rows(numbers=(0, 1, 2, 3), seed=0):
        own = None if sources is None else [sources[number] for number in numbers]
        return Rows(model, own, dtype=torch.int8, seed=seed)

    together = one_shot(rows(), TEXTS)
    for other in (chunked_rows(rows(seed=3), TEXTS), one_by_one(rows(seed=4), TEXTS)):
        assert all(torch.equal(one, two) for one, two in zip(together, other, strict=True))
    for number, text in enumerate(TEXTS):
        assert torch.equal(one_shot(rows([number]), [text])[0], together[number])
    with choice.using("cpu", programs=False):
        eager = one_shot(rows(), TEXTS)
    assert all(torch.equal(one, two) for one, two in zip(together, eager, strict=True))
    exact = one_shot(Rows(model, sources), TEXTS)
    assert not torch.equal(together[0], exact[0])
    with choice.using("torch"):
        reference = one_shot(
            Rows(load_model(tmp_path, torch.float32, CPU).transformer, sources, dtype=torch.int8), TEXTS
        )
    for ours, theirs, unrounded in zip(together, reference, exact, strict=True):
        error, scale = (ours - theirs).square().mean().sqrt(), (ours - unrounded).square().mean().sqrt()
        # A key or value near the middle between two codes may be rounded to either.
        assert error <= 0.5 * scale + 1e-5
