"""Divides the memory for keys, values and states by need, among models and among the pools of one model.

The need of a pool is the memory for one sequence as long as the context, with the default number of beams. Most
conversations are much shorter than a long context. So each pool first gets the memory for one sequence of
`AGENT_TOKENS` tokens. Then the needs are satisfied, the smallest need first. The rest is divided in proportion to the
needs, so that all models can run the same number of long sequences.

The memory for states of mixers is divided differently, because a sequence of any length needs one state. In proportion
to the needs, a model with a long context would get hardly more than one slot. States therefore get up to half of their
model's memory. Both halves are used fully by sequences whose keys and values take as much memory as one state and one
snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from models.config import AttentionConfig, MixerConfig
from models.steps.kv_cache import KVCache
from models.steps.state_memory import StateMemory
from server.ipc.wire.descriptions import AGENT_TOKENS, state_slots

AGENT_SLOTS = 8
"""State slots for one sequence of `AGENT_TOKENS` tokens: for its state, for snapshots of the conversation's last
prompts, and for snapshots of short requests in between."""


@dataclass(frozen=True)
class PoolNeed:
    """Memory that one pool needs, in blocks.

    block_bytes: bytes of a block.
    blocks: blocks of one sequence of full length, with all its beams.
    max_blocks: blocks of the largest batch of such sequences.
    agent_blocks: blocks of one sequence of at most `AGENT_TOKENS` tokens, with all its beams.
    """

    block_bytes: int
    blocks: int
    max_blocks: int
    agent_blocks: int = 0

    @property
    def bytes(self) -> int:
        return self.block_bytes * self.blocks

    @property
    def max_bytes(self) -> int:
        return self.block_bytes * self.max_blocks

    @property
    def agent_bytes(self) -> int:
        return self.block_bytes * self.agent_blocks


def pool_need(
    layers: Sequence[AttentionConfig], dtype: torch.dtype, block_size: int, length: int, beams: int, max_rows: int
) -> PoolNeed:
    """Memory need of a pool of KV blocks.

    layers: attention of each layer. dtype: dtype of keys and values. block_size: tokens of a block.
    length: tokens of the longest sequence. beams: default number of beams. max_rows: rows of the largest batch.
    """
    blocks, agent_blocks = -(-length // block_size), -(-min(length, AGENT_TOKENS) // block_size)
    block_bytes = KVCache.block_bytes(layers, block_size, dtype)
    return PoolNeed(block_bytes, beams * blocks, max(beams, max_rows) * blocks, beams * agent_blocks)


def state_need(mixers: Iterable[MixerConfig], beams: int, max_rows: int, has_drafts: bool) -> PoolNeed:
    """Memory need of the pool of state slots. A slot counts as one block.

    mixers: the layers with a state. beams: default number of beams. max_rows: rows of the largest batch.
    In the largest batch, each row has a state and a snapshot, and with drafts a second state.
    """
    one = state_slots(beams)
    largest = max(one, (3 if has_drafts else 2) * max_rows)
    return PoolNeed(StateMemory.slot_bytes(mixers), one, largest, min(max(one, AGENT_SLOTS), largest))


def pool_blocks(needs: Mapping[str, PoolNeed], memory_bytes: int) -> dict[str, int]:
    """Divide the memory of one model among its pools. Returns the number of blocks per pool, by the pool's name.

    needs: need of each pool, by its name. memory_bytes: memory of the model.
    """
    if "state" in needs:
        states, rest = needs["state"], {name: need for name, need in needs.items() if name != "state"}
        limit = memory_bytes // 2 if any(need.bytes for need in rest.values()) else memory_bytes
        state_bytes = min(max(limit, states.bytes), states.max_bytes, memory_bytes)
        slots = state_bytes // states.block_bytes
        return {**pool_blocks(rest, memory_bytes - slots * states.block_bytes), "state": slots}
    shares = divide_by_need(
        memory_bytes,
        [need.bytes for need in needs.values()],
        [need.max_bytes for need in needs.values()],
        [need.agent_bytes for need in needs.values()],
    )
    return {
        # Blocks without bytes belong to a model without attention. They only count tokens.
        name: share // need.block_bytes if need.block_bytes else need.max_blocks
        for (name, need), share in zip(needs.items(), shares, strict=True)
    }


def agent_bytes(needs: Mapping[str, PoolNeed]) -> int:
    """Bytes that a model must get for `pool_blocks` to give each pool at least its `agent_blocks`."""
    states = needs["state"].agent_bytes if "state" in needs else 0
    others = sum(need.agent_bytes for name, need in needs.items() if name != "state")
    wanted = 2 * max(states, others) if states and others else states + others
    return min(wanted, sum(need.max_bytes for need in needs.values()))


def divide_by_need(
    total: int, needs: Sequence[int], maxima: Sequence[int], firsts: Sequence[int] | None = None
) -> list[int]:
    """Divide a number of bytes among receivers. Returns the number of bytes for each receiver.

    First each receiver gets up to `firsts[i]`, then up to `needs[i]` in total. The remaining bytes are divided in
    proportion to the needs, up to `maxima[i]` in total. If there are too few bytes for all firsts, or for all needs,
    the receivers with the smallest amounts get theirs completely.

    needs, maxima, firsts: bytes of each receiver. `firsts[i]` and `needs[i]` are at most `maxima[i]`.
    """
    equal = [1] * len(needs)
    shares = [0] * len(needs)
    for weights, limits in ((equal, firsts or shares), (equal, needs), (needs, maxima)):
        room = [max(limit - share, 0) for limit, share in zip(limits, shares, strict=True)]
        more = _fill(total - sum(shares), weights, room)
        shares = [share + added for share, added in zip(shares, more, strict=True)]
    return shares


def _fill(total: int, weights: Sequence[int], limits: Sequence[int]) -> list[int]:
    """Divide `total` into shares in proportion to the weights, with a limit for each share.

    What a limit takes from one share is divided among the shares below their limits. Returns the share of each weight.
    """
    given = [0] * len(weights)
    left, left_weight = total, sum(weights)
    for index in sorted(range(len(weights)), key=lambda place: limits[place] / max(weights[place], 1)):
        given[index] = min(limits[index], left * weights[index] // max(left_weight, 1))
        left -= given[index]
        left_weight -= weights[index]
    return given
