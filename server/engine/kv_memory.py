"""Divides the memory for keys and values: among models, and among the pools of one model, by need.

The need of a pool is the memory of one sequence of full length, with the default beams of the checkpoint. Needs are
satisfied first, the smallest ones before the others; what is left is divided in proportion to the needs, so that the
models can run equally many long sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from models.config import AttentionConfig
from models.kv_cache import KVCache


@dataclass(frozen=True)
class PoolNeed:
    """Memory that one pool can use.

    block_bytes: bytes of a block. blocks: blocks of one sequence of full length, with all its beams.
    max_blocks: blocks of the largest batch of such sequences.
    """

    block_bytes: int
    blocks: int
    max_blocks: int

    @property
    def bytes(self) -> int:
        return self.block_bytes * self.blocks

    @property
    def max_bytes(self) -> int:
        return self.block_bytes * self.max_blocks


def pool_need(
    layers: Sequence[AttentionConfig], dtype: torch.dtype, block_size: int, length: int, beams: int, max_rows: int
) -> PoolNeed:
    """Need of a pool.

    layers: attention of each layer. dtype: dtype of keys and values.
    length: tokens of the longest sequence. beams: default number of beams. max_rows: rows of the largest batch.
    """
    blocks = -(-length // block_size)
    block_bytes = KVCache.block_bytes(layers, block_size, dtype)
    return PoolNeed(block_bytes, beams * blocks, max(beams, max_rows) * blocks)


def pool_blocks(needs: Mapping[str, PoolNeed], memory_bytes: int) -> dict[str, int]:
    """Number of blocks of each pool of a model."""
    shares = divide_by_need(
        memory_bytes, [need.bytes for need in needs.values()], [n.max_bytes for n in needs.values()]
    )
    return {name: share // need.block_bytes for (name, need), share in zip(needs.items(), shares, strict=True)}


def divide_by_need(total: int, needs: Sequence[int], maxima: Sequence[int]) -> list[int]:
    """Divide `total`: first the needs, then the rest in proportion to them, at most `maxima[i]` to each."""
    firsts = _fill(total, [1] * len(needs), needs)
    rest = _fill(total - sum(firsts), needs, [most - first for most, first in zip(maxima, firsts, strict=True)])
    return [first + more for first, more in zip(firsts, rest, strict=True)]


def _fill(total: int, weights: Sequence[int], limits: Sequence[int]) -> list[int]:
    """Divide `total` in proportion to the weights. What exceeds a limit goes to the others."""
    given = [0] * len(weights)
    left, left_weight = total, sum(weights)
    for index in sorted(range(len(weights)), key=lambda one: limits[one] / max(weights[one], 1)):
        given[index] = min(limits[index], left * weights[index] // max(left_weight, 1))
        left -= given[index]
        left_weight -= weights[index]
    return given
