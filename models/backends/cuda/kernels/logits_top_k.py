"""Top k of the logits of each row, log-sum-exp, and whether all logits are finite."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.launch import kernel, power_of_two, warps
from models.backends.logits import LogitsTopK

MAX_TOP_K = 64
"""Largest k that the kernel supports."""


def logits_top_k(logits: Tensor, k: int = 1, with_logsumexp: bool = False) -> LogitsTopK:
    """The k largest logits of each row; of equal logits, the lower id comes first.

    logits: [rows, vocab], float32; the last dimension contiguous. 1 <= k <= min(vocab, MAX_TOP_K).
    The results of a row depend on that row alone.
    """
    rows, vocab = logits.shape
    assert 1 <= k <= min(vocab, MAX_TOP_K), (k, vocab)
    device, (keys, numbers) = logits.device, top_k_of_chunks(logits, k, with_logsumexp)
    chunks = keys.shape[1]
    result = LogitsTopK(
        torch.empty(rows, k, device=device),
        torch.empty(rows, k, dtype=torch.int64, device=device),
        torch.empty(rows, device=device) if with_logsumexp else None,
        torch.empty(rows, dtype=torch.bool, device=device),
    )
    # Every k above 1 uses the tile of the largest k, so that two kernels are compiled and not one for each k.
    candidates = power_of_two(chunks * (1 if k == 1 else MAX_TOP_K))
    if rows:
        _merge_kernel[(rows,)](
            keys,
            numbers,
            result.values,
            result.ids,
            result.values if result.logsumexp is None else result.logsumexp,
            result.is_finite,
            chunks,
            k,
            WITH_SUM=with_logsumexp,
            CHUNKS_TILE=power_of_two(chunks),
            TILE=candidates,
            num_warps=warps(candidates),
            enable_fp_fusion=True,
        )
    return result


CHUNK = 4096
"""Number of logits of a chunk, which one program of the first kernel processes."""


def top_k_of_chunks(logits: Tensor, k: int, with_sum: bool) -> tuple[Tensor, Tensor]:
    """The k largest logits of each chunk. A chunk is `CHUNK` logits of one row; the last chunk may have fewer logits.

    logits: [rows, vocab], float32; the last dimension contiguous.
    with_sum: whether to compute maximum and sum of exponentials of each chunk.
    Returns two tensors:
        [rows, chunks, k], int64: keys in descending order. The upper 32 bits are the sort key of the logit, which
            `numbers_of` converts back. The lower 32 bits contain the id.
        [3, rows, chunks], float32: maximum, sum of exponentials, and number of logits that are not finite.
    """
    rows, vocab = logits.shape
    chunks = -(-vocab // CHUNK)
    keys = torch.empty(rows, chunks, k, dtype=torch.int64, device=logits.device)
    numbers = torch.empty(3, rows, chunks, device=logits.device)
    if rows:
        _chunk_kernel[rows, chunks](
            logits,
            keys,
            numbers,
            logits.stride(0),
            vocab,
            k,
            WITH_SUM=with_sum,
            CHUNK=CHUNK,
            num_warps=8,
            enable_fp_fusion=True,
        )
    return keys, numbers


@triton.jit
def sort_keys(x):
    """int32 keys that sort like the float32 numbers. Both zeros have the same key.

    NaN has the lowest key, -2 ** 31 + 1.
    """
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x == x, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits), -2147483647)


@triton.jit
def numbers_of(keys):
    """The float32 numbers of sort keys; -inf for the key of NaN."""
    bits = tl.where(keys < 0, keys ^ 0x7FFFFFFF, keys)
    return tl.where(keys == -2147483647, float("-inf"), bits.to(tl.float32, bitcast=True))


@kernel(do_not_specialize=["k"])
def _chunk_kernel(logits, keys, numbers, stride, vocab, k, WITH_SUM: tl.constexpr, CHUNK: tl.constexpr):
    """Compute the results of `top_k_of_chunks` for one chunk of one row.

    keys, numbers: memory for the two results of `top_k_of_chunks`.
    """
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    place = row * tl.num_programs(1) + chunk
    layer = tl.num_programs(0).to(tl.int64) * tl.num_programs(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = ids < vocab
    x = tl.load(logits + row * stride + ids, mask=inside, other=float("-inf"))
    tl.store(numbers + 2 * layer + place, tl.sum(tl.where(inside & (x - x != 0.0), 1.0, 0.0), 0))
    # Of two equal numbers, the one with the lower id has the larger key.
    left = sort_keys(x).to(tl.int64) * 4294967296 + (0x7FFFFFFF - ids)
    left = tl.where(inside, left, -9223372036854775807)
    for choice in range(k):
        best = tl.max(left, 0)
        tl.store(keys + place * k + choice, best)
        left = tl.where(left == best, -9223372036854775807, left)
    if WITH_SUM:
        maximum = tl.max(x, 0)
        tl.store(numbers + place, maximum)
        total = tl.sum(tl.where(inside, tl.exp(x - tl.where(maximum == float("-inf"), 0.0, maximum)), 0.0), 0)
        tl.store(numbers + layer + place, total)


@kernel(do_not_specialize=["k"])
def _merge_kernel(
    keys,
    numbers,
    values,
    ids,
    logsumexp,
    is_finite,
    chunks,
    k,
    WITH_SUM: tl.constexpr,
    CHUNKS_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Choose the top k of a row among the top k of its chunks, and add up the other results of the chunks."""
    row = tl.program_id(0).to(tl.int64)
    layer = tl.num_programs(0).to(tl.int64) * chunks
    places = tl.arange(0, TILE)
    left = tl.load(keys + row * chunks * k + places, mask=places < chunks * k, other=-9223372036854775807)
    for choice in range(k):
        best = tl.max(left, 0)
        tl.store(values + row * k + choice, numbers_of((best >> 32).to(tl.int32)))
        tl.store(ids + row * k + choice, 0x7FFFFFFF - (best & 0xFFFFFFFF))
        left = tl.where(left == best, -9223372036854775807, left)
    number = tl.arange(0, CHUNKS_TILE)
    place = row * chunks + number
    inside = number < chunks
    others = tl.load(numbers + 2 * layer + place, mask=inside, other=0.0)
    tl.store(is_finite + row, tl.sum(others, 0) == 0.0)
    if WITH_SUM:
        maxima = tl.load(numbers + place, mask=inside, other=float("-inf"))
        totals = tl.load(numbers + layer + place, mask=inside, other=0.0)
        total = tl.sum(tl.where(inside, tl.exp(maxima - tl.max(maxima, 0)) * totals, 0.0), 0)
        tl.store(logsumexp + row, tl.log(total))
