"""Sparse self-attention over long sequences: time and memory grow linearly with the length.

A sequence is cut into blocks of queries. Each block attends to itself, to its two neighbouring blocks, and to some keys
that all blocks share. Sequences are computed one by one, so a result does not depend on the other sequences of a batch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends.attention_metadata import KeyBias
from models.backends.choice import backend
from models.config import RopeConfig
from models.config.sparse_attention import (
    BandedAttentionConfig,
    BlockSparseAttentionConfig,
    GlobalFirstToken,
    LongformerAttentionConfig,
    TransientGlobalAttentionConfig,
)
from models.layers.full_sequence_attention import FullSequenceAttention
from models.layers.linear import Linear
from models.layers.norms import RMSNorm
from models.layers.positions import BucketBias, PositionEncodings, Rotation
from models.steps.batch import EncoderBatch, WholeBatch


@dataclass(frozen=True)
class SequenceSlice:
    """One sequence of a step, as sparse attention needs it.

    tokens: range of the sequence among the tokens of the step.
    token_ids: [seq], int64; None for a recording.
    score_bias: [heads, 2 * n - 1], model dtype, bias by distance, where n is at least the length of the sequence; or
        None.
    dtype, device: dtype and device of the hidden states.
    """

    tokens: slice
    token_ids: Tensor | None
    score_bias: Tensor | None
    dtype: torch.dtype
    device: torch.device

    @property
    def length(self) -> int:
        length: int = self.tokens.stop - self.tokens.start
        return length


@dataclass(frozen=True)
class SparsePlan:
    """Which keys each query of one sequence attends to.

    block_size: number of queries in a block; 0 for a sequence that is short enough for full attention.
    mask: added to the scores, or None. Broadcastable to [blocks, heads, block_size, 3 * block_size + shared], or to
        [1, heads, seq, seq + shared] if `block_size` is 0.
    global_tokens: [n], int64, positions of the tokens that attend to the whole sequence; or None.
    """

    block_size: int
    mask: Tensor | None
    global_tokens: Tensor | None = None


class SparseAttention(FullSequenceAttention[Sequence[tuple[SequenceSlice, SparsePlan]]]):
    """Base class of sparse attention. Subclasses plan which keys are attended to, separately for each sequence."""

    @abstractmethod
    def plan_sequence(self, sequence: SequenceSlice) -> SparsePlan: ...

    def make_plan(
        self, batch: WholeBatch, encodings: PositionEncodings, dtype: torch.dtype
    ) -> Sequence[tuple[SequenceSlice, SparsePlan]]:
        """Plan the attention of each sequence. Returns each sequence of the batch with its plan."""
        bias, spans = encodings.score_bias, [slice(start, end) for start, end in pairwise(batch.offsets)]
        assert not isinstance(bias, KeyBias), "sparse attention takes a bias by distance, not by key"
        ids, device = batch.token_ids if isinstance(batch, EncoderBatch) else None, batch.positions.device
        sequences = [SequenceSlice(span, None if ids is None else ids[span], bias, dtype, device) for span in spans]
        return [(sequence, self.plan_sequence(sequence)) for sequence in sequences]

    def forward(
        self,
        hidden: Tensor,
        rotations: Mapping[RopeConfig, Rotation],
        plan: Sequence[tuple[SequenceSlice, SparsePlan]],
    ) -> Tensor:
        query, key, value = self.queries_keys_values(hidden, rotations)
        output = torch.empty_like(query)
        for sequence, sequence_plan in plan:
            rows = sequence.tokens
            output[rows] = self._attend(hidden[rows], query[rows], key[rows], value[rows], sequence_plan)
        return self.project_output(output)

    def _attend(self, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, plan: SparsePlan) -> Tensor:
        """Attend within one sequence.

        hidden: [seq, hidden].
        query, key, value: [seq, heads, head_dim].
        Returns [seq, heads, head_dim].
        """
        shared = self._shared_keys_values(hidden, key, value, plan)
        output = _attend_in_blocks(query, key, value, shared, plan, self.config.scale)
        if plan.global_tokens is not None:
            output[plan.global_tokens] = self._attend_globally(hidden, query, key, value, plan.global_tokens)
        return output

    def _shared_keys_values(
        self, hidden: Tensor, key: Tensor, value: Tensor, plan: SparsePlan
    ) -> tuple[Tensor, Tensor] | None:
        """Keys and values that all blocks attend to: two tensors [shared, heads, head_dim]; None if there are none."""
        if plan.global_tokens is None or not plan.block_size:
            return None
        return key[plan.global_tokens], value[plan.global_tokens]

    def _attend_globally(self, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, tokens: Tensor) -> Tensor:
        """Attend from the global tokens to the whole sequence: [n, heads, head_dim]. tokens: [n], int64."""
        block = query[None, tokens]
        return backend(block).block_attention(block, key[None], value[None], None, self.config.scale)[0]


class BandedAttention(SparseAttention):
    """Attention of each token to the tokens at a distance of less than `window`.

    If `back_window` is set, it limits the distance of earlier tokens, and `window` the distance of later tokens.
    """

    config: BandedAttentionConfig

    def plan_sequence(self, sequence: SequenceSlice) -> SparsePlan:
        return self._plan_band(sequence, None)

    def _plan_band(self, sequence: SequenceSlice, global_tokens: Tensor | None) -> SparsePlan:
        assert self.config.window is not None
        length, after, device = sequence.length, self.config.window - 1, sequence.device
        back = after if self.config.back_window is None else self.config.back_window - 1
        size = max(back, after)
        if length <= min(back, after) + 1:
            positions, bias = torch.arange(length, device=device), sequence.score_bias
            return SparsePlan(
                0, None if bias is None else _bias_at(positions - positions[:, None], bias), global_tokens
            )
        distance = torch.arange(-size, 2 * size, device=device) - torch.arange(size, device=device)[:, None]
        band = torch.zeros(1, 1, 1, dtype=sequence.dtype, device=device)
        if sequence.score_bias is not None:
            band = _bias_at(distance, sequence.score_bias)
        band = band.masked_fill((distance > after) | (distance < -back), -torch.inf)
        return SparsePlan(size, _block_mask(band, length, size, global_tokens), global_tokens)


class LongformerAttention(BandedAttention):
    """Attention within a window and to global tokens, which have separate projections.

    Every token attends to the global tokens, and global tokens attend to every token.
    Source: Beltagy et al. 2020, arXiv:2004.05150.
    """

    unadaptable = ("global_query", "global_key", "global_value")
    config: LongformerAttentionConfig

    def __init__(self, config: LongformerAttentionConfig, hidden_size: int) -> None:
        super().__init__(config, hidden_size)
        width = config.num_heads * config.head_dim
        self.global_query = Linear(hidden_size, width, config.query_bias)
        self.global_key = Linear(hidden_size, width, config.key_bias)
        self.global_value = Linear(hidden_size, width, config.value_bias)

    def plan_sequence(self, sequence: SequenceSlice) -> SparsePlan:
        return self._plan_band(sequence, self._global_tokens(sequence))

    def _global_tokens(self, sequence: SequenceSlice) -> Tensor | None:
        """Positions of the global tokens: [n], int64; None if there are none."""
        device = sequence.device
        if isinstance(self.config.global_tokens, GlobalFirstToken):
            return torch.zeros(1, dtype=torch.int64, device=device)
        assert sequence.token_ids is not None, "global tokens are those of a text"
        ids, end = sequence.token_ids.tolist(), self.config.global_tokens.token_id
        count = ids.index(end) if end in ids else 0
        return torch.arange(count, device=device) if count else None

    def _attend_globally(self, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, tokens: Tensor) -> Tensor:
        queries = self._split_heads(self.global_query(hidden[tokens]))
        keys, values = self._split_heads(self.global_key(hidden)), self._split_heads(self.global_value(hidden))
        block = queries[None]
        return backend(block).block_attention(block, keys[None], values[None], None, self.config.scale)[0]


class TransientGlobalAttention(BandedAttention):
    """Attention within a window and to summaries: normalised sums of `summary_tokens` consecutive hidden states.

    Every token attends to all summaries. The last summary includes the remaining tokens of the sequence; a sequence of
    fewer than `summary_tokens` tokens has no summary. Every layer has a copy of the same table of score biases for
    summaries.

    Source: Guo et al. 2022, arXiv:2112.07916, section 3.2.
    """

    unadaptable = ("query", "key", "value")
    config: TransientGlobalAttentionConfig

    def __init__(self, config: TransientGlobalAttentionConfig, hidden_size: int) -> None:
        super().__init__(config, hidden_size)
        self.summary_norm = RMSNorm(hidden_size, config.summary_norm_eps)
        self.summary_bias = BucketBias(config.summary_buckets, config.num_heads)

    def plan_sequence(self, sequence: SequenceSlice) -> SparsePlan:
        band, count = self._plan_band(sequence, None), sequence.length // self.config.summary_tokens
        if not count:
            return band
        assert band.mask is not None, "attention with summaries has a score bias"
        summary = torch.arange(sequence.length, device=sequence.device) // self.config.summary_tokens
        distance = torch.arange(count, device=summary.device) - summary.clamp(max=count - 1)[:, None]
        bias = _bias_at(distance, self.summary_bias(count))
        if band.block_size:
            bias = F.pad(bias, (0, 0, 0, -sequence.length % band.block_size))
            bias = bias.view(len(bias), -1, band.block_size, count).transpose(0, 1)
        return SparsePlan(band.block_size, torch.cat([band.mask, bias], -1))

    def _shared_keys_values(
        self, hidden: Tensor, key: Tensor, value: Tensor, plan: SparsePlan
    ) -> tuple[Tensor, Tensor] | None:
        width = self.config.summary_tokens
        count = len(hidden) // width
        if not count:
            return None
        sums = hidden[: count * width].view(count, width, -1).sum(1)
        sums[-1] += hidden[count * width :].sum(0)
        _, keys, values = self.queries_keys_values(self.summary_norm(sums), {})
        return keys, values


class BlockSparseAttention(SparseAttention):
    """Attention to neighbouring blocks, and to the first and last block, which attend to the whole sequence.

    In the paper, each block also attends to random blocks. The reference implementation draws them in training only. In
    inference, it uses the first block in place of each random block, so the softmax counts that block
    `1 + num_random_blocks` times. This class does the same.

    Source: Zaheer et al. 2020, arXiv:2007.14062, section 2.
    """

    config: BlockSparseAttentionConfig

    def plan_sequence(self, sequence: SequenceSlice) -> SparsePlan:
        length, size, device = sequence.length, self.config.block_size, sequence.device
        if length <= self.config.full_length:
            return SparsePlan(0, None)
        last = torch.arange((length - 1) // size * size, length, device=device)
        global_tokens = torch.cat([torch.arange(size, device=device), last])
        mask = _block_mask(torch.zeros(1, 1, 1, dtype=sequence.dtype, device=device), length, size, global_tokens)
        mask[..., 3 * size : 4 * size] = math.log(1 + self.config.num_random_blocks)
        return SparsePlan(size, mask, global_tokens)


def _bias_at(distance: Tensor, score_bias: Tensor) -> Tensor:
    """Look up the bias of each distance `key - query`.

    Distances outside of the table use its first or last column. The mask hides them.

    distance: [...], int64.
    score_bias: [heads, 2 * length - 1].
    Returns [heads, ...].
    """
    zero = score_bias.shape[1] // 2
    return score_bias[:, (distance + zero).clamp(0, 2 * zero)]


def _block_mask(band: Tensor, length: int, size: int, global_tokens: Tensor | None) -> Tensor:
    """Build the mask of a sequence that is divided into blocks, with a column of zeros for each global token.

    A global token is masked inside the band, so that no query attends to it twice.

    band: [heads or 1, size or 1, 3 * size or 1], the mask of a block that has neighbours on both sides.
    length: number of tokens of the sequence.
    size: number of tokens of a block.
    global_tokens: [n], int64, or None.
    Returns [blocks, heads or 1, size, 3 * size + n].
    """
    blocks = -(-length // size)
    visible = torch.zeros((blocks + 2) * size, dtype=torch.bool, device=band.device)
    visible[size : size + length] = True
    if global_tokens is not None:
        visible[size + global_tokens] = False
    hidden = ~visible.unfold(0, 3 * size, size)[:, None, None]
    mask = band.expand(-1, size, 3 * size).masked_fill(hidden, -torch.inf)
    return mask if global_tokens is None else F.pad(mask, (0, len(global_tokens)))


def _attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, shared: tuple[Tensor, Tensor] | None, plan: SparsePlan, scale: float
) -> Tensor:
    """Attend within one sequence, block by block. query, key, value, result: [seq, heads, head_dim]."""
    length, size = len(query), plan.block_size or len(query)
    blocks = F.pad(query, (0, 0, 0, 0, 0, -length % size)).view(-1, size, *query.shape[1:])
    sides = [_with_neighbours(side, size) if plan.block_size else side[None] for side in (key, value)]
    if shared is not None:
        pairs = zip(sides, shared, strict=True)
        sides = [torch.cat([side, more.expand(len(side), *more.shape)], 1) for side, more in pairs]
    return backend(blocks).block_attention(blocks, sides[0], sides[1], plan.mask, scale).flatten(0, 1)[:length]


def _with_neighbours(side: Tensor, size: int) -> Tensor:
    """Join each block of keys or values with the blocks before and after it.

    side: [seq, heads, head_dim]. size: number of tokens of a block.
    Returns [blocks, 3 * size, heads, head_dim], views of one padded copy.
    """
    padded = F.pad(side, (0, 0, 0, 0, size, size + -len(side) % size))
    return padded.unfold(0, 3 * size, size).movedim(-1, 1)
