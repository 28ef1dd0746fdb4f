"""Self-attention over whole long texts that never looks at every pair of tokens.

A text is cut into blocks of queries; each block looks at itself and at its
two neighbours, and all of them at some shared keys. Texts are computed one by one, so that batch-mates change nothing.
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

from models.attention_metadata import KeyBias
from models.backends import interface as ops
from models.batch import EncoderBatch
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


@dataclass(frozen=True)
class Text:
    """One text of a step.

    tokens: where it lies among the tokens of the step. token_ids: [seq], int64.
    score_bias: as in `AttentionPlan`, for this text's length or a longer one. dtype: of the hidden states.
    """

    tokens: slice
    token_ids: Tensor
    score_bias: Tensor | None
    dtype: torch.dtype

    @property
    def length(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class TextPlan:
    """Who sees whom in one text.

    size: queries of a block; 0 where the text is short enough for all of its tokens to see each other.
    mask: added to the scores; broadcastable to [blocks, heads, size, 3 * size + shared], or where size is 0 to
        [1, heads, seq, seq + shared]; or None.
    global_tokens: [n], int64, tokens of the text that see all of it; or None.
    """

    size: int
    mask: Tensor | None
    global_tokens: Tensor | None = None


class SparseAttention(FullSequenceAttention[Sequence[tuple[Text, TextPlan]]]):
    """Plans each text alone, and computes it alone."""

    @abstractmethod
    def plan(self, text: Text) -> TextPlan: ...

    def plan_of(
        self, batch: EncoderBatch, encodings: PositionEncodings, dtype: torch.dtype
    ) -> Sequence[tuple[Text, TextPlan]]:
        """Every text with its plan."""
        bias, spans = encodings.score_bias, [slice(start, end) for start, end in pairwise(batch.offsets)]
        assert not isinstance(bias, KeyBias), "sparse attention knows distances, not positions"
        texts = [Text(span, batch.token_ids[span], bias, dtype) for span in spans]
        return [(text, self.plan(text)) for text in texts]

    def forward(
        self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation], plan: Sequence[tuple[Text, TextPlan]]
    ) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        query, key, value = self.projections(hidden, rotations)
        output = torch.empty_like(query)
        for text, its_plan in plan:
            mine = text.tokens
            output[mine] = self._attend(hidden[mine], query[mine], key[mine], value[mine], its_plan)
        return self.join(output)

    def _attend(self, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, plan: TextPlan) -> Tensor:
        """One text. hidden: [seq, hidden]. query, key, value: [seq, heads, head_dim] -> [seq, heads, head_dim]."""
        shared = self._shared(hidden, key, value, plan)
        output = _in_blocks(query, key, value, shared, plan, self.config.scale)
        if plan.global_tokens is not None:
            output[plan.global_tokens] = self._everywhere(hidden, query, key, value, plan.global_tokens)
        return output

    def _shared(self, hidden: Tensor, key: Tensor, value: Tensor, plan: TextPlan) -> tuple[Tensor, Tensor] | None:
        """Keys and values that every query sees besides its block's: two of [shared, heads, head_dim], or None."""
        if plan.global_tokens is None or not plan.size:
            return None
        return key[plan.global_tokens], value[plan.global_tokens]

    def _everywhere(self, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, tokens: Tensor) -> Tensor:
        """What global tokens make of the whole text: [n, heads, head_dim]."""
        return ops.block_attention(query[None, tokens], key[None], value[None], None, self.config.scale)[0]


class BandedAttention(SparseAttention):
    """Each token sees those less than `window` away."""

    config: BandedAttentionConfig

    def plan(self, text: Text) -> TextPlan:
        return self._band(text, None)

    def _band(self, text: Text, global_tokens: Tensor | None) -> TextPlan:
        assert self.config.window is not None
        length, size, device = text.length, self.config.window - 1, text.token_ids.device
        if length <= self.config.window:
            positions = torch.arange(length, device=device)
            bias = None if text.score_bias is None else _bias_of(positions - positions[:, None], text.score_bias)
            return TextPlan(0, bias, global_tokens)
        distance = torch.arange(-size, 2 * size, device=device) - torch.arange(size, device=device)[:, None]
        band = torch.zeros(1, 1, 1, dtype=text.dtype, device=device)
        if text.score_bias is not None:
            band = _bias_of(distance, text.score_bias)
        band = band.masked_fill(distance.abs() > size, -torch.inf)
        return TextPlan(size, _masked(band, length, size, global_tokens), global_tokens)


class LongformerAttention(BandedAttention):
    """A window and global tokens (Beltagy et al. 2020, arXiv:2004.05150). Every token sees the global ones, and they
    see every token through projections of their own."""

    not_by_token = ("global_query", "global_key", "global_value")
    config: LongformerAttentionConfig

    def __init__(self, config: LongformerAttentionConfig, hidden_size: int) -> None:
        super().__init__(config, hidden_size)
        width = config.num_heads * config.head_dim
        self.global_query = Linear(hidden_size, width, config.query_bias)
        self.global_key = Linear(hidden_size, width, config.key_bias)
        self.global_value = Linear(hidden_size, width, config.value_bias)

    def plan(self, text: Text) -> TextPlan:
        return self._band(text, self._global_tokens(text))

    def _global_tokens(self, text: Text) -> Tensor | None:
        device = text.token_ids.device
        if isinstance(self.config.global_tokens, GlobalFirstToken):
            return torch.zeros(1, dtype=torch.int64, device=device)
        ids, end = text.token_ids.tolist(), self.config.global_tokens.token_id
        count = ids.index(end) if end in ids else 0
        return torch.arange(count, device=device) if count else None

    def _everywhere(self, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, tokens: Tensor) -> Tensor:
        queries = self._heads(self.global_query(hidden[tokens]))
        keys, values = self._heads(self.global_key(hidden)), self._heads(self.global_value(hidden))
        return ops.block_attention(queries[None], keys[None], values[None], None, self.config.scale)[0]


class TransientGlobalAttention(BandedAttention):
    """A window and summaries (Guo et al. 2022, arXiv:2112.07916, section 3.2): the sum of each `summary_tokens` tokens,
    the last one's with what is left over, normed. A text of fewer tokens has none.

    Every layer holds its own copy of the one table that biases them.
    """

    not_by_token = ("query", "key", "value")
    config: TransientGlobalAttentionConfig

    def __init__(self, config: TransientGlobalAttentionConfig, hidden_size: int) -> None:
        super().__init__(config, hidden_size)
        self.summary_norm = RMSNorm(hidden_size, config.summary_norm_eps)
        self.summary_bias = BucketBias(config.summary_buckets, config.num_heads)

    def plan(self, text: Text) -> TextPlan:
        band, count = self._band(text, None), text.length // self.config.summary_tokens
        if not count:
            return band
        assert band.mask is not None, "summaries go with biased positions"
        own = torch.arange(text.length, device=text.token_ids.device) // self.config.summary_tokens
        distance = torch.arange(count, device=own.device) - own.clamp(max=count - 1)[:, None]
        bias = _bias_of(distance, self.summary_bias(count))
        if band.size:
            bias = F.pad(bias, (0, 0, 0, -text.length % band.size))
            bias = bias.view(len(bias), -1, band.size, count).transpose(0, 1)
        return TextPlan(band.size, torch.cat([band.mask, bias], -1))

    def _shared(self, hidden: Tensor, key: Tensor, value: Tensor, plan: TextPlan) -> tuple[Tensor, Tensor] | None:
        width = self.config.summary_tokens
        count = len(hidden) // width
        if not count:
            return None
        sums = hidden[: count * width].view(count, width, -1).sum(1)
        sums[-1] += hidden[count * width :].sum(0)
        _, keys, values = self.projections(self.summary_norm(sums), {})
        return keys, values


class BlockSparseAttention(SparseAttention):
    """Each block sees its neighbours and, besides, the first and the last one, which see the whole text (Zaheer et al.
    2020, arXiv:2007.14062, section 2).

    The paper has every block see some at random as well. The reference draws them in training alone and in inference
    takes the first block each time: seen `1 + num_random_blocks` times, its shares grow by that factor.
    """

    config: BlockSparseAttentionConfig

    def plan(self, text: Text) -> TextPlan:
        size, device = self.config.block_size, text.token_ids.device
        if text.length <= self.config.full_length:
            return TextPlan(0, None)
        last = torch.arange((text.length - 1) // size * size, text.length, device=device)
        ends = torch.cat([torch.arange(size, device=device), last])
        mask = _masked(torch.zeros(1, 1, 1, dtype=text.dtype, device=device), text.length, size, ends)
        mask[..., 3 * size : 4 * size] = math.log(1 + self.config.num_random_blocks)
        return TextPlan(size, mask, ends)


def _bias_of(distance: Tensor, score_bias: Tensor) -> Tensor:
    """[...], int64, to [heads, ...]: the bias of each distance `key - query`; some unseen ones may lie outside."""
    zero = score_bias.shape[1] // 2
    return score_bias[:, (distance + zero).clamp(0, 2 * zero)]


def _masked(band: Tensor, length: int, size: int, elsewhere: Tensor | None) -> Tensor:
    """The mask of a text in blocks, with a column of zeros for each token `elsewhere`, which the band does not show.

    band: [heads or 1, size or 1, 3 * size or 1], for a block with neighbours on both sides.
    """
    blocks = -(-length // size)
    shown = torch.zeros((blocks + 2) * size, dtype=torch.bool, device=band.device)
    shown[size : size + length] = True
    if elsewhere is not None:
        shown[size + elsewhere] = False
    hidden = ~shown.unfold(0, 3 * size, size)[:, None, None]
    mask = band.expand(-1, size, 3 * size).masked_fill(hidden, -torch.inf)
    return mask if elsewhere is None else F.pad(mask, (0, len(elsewhere)))


def _in_blocks(
    query: Tensor, key: Tensor, value: Tensor, shared: tuple[Tensor, Tensor] | None, plan: TextPlan, scale: float
) -> Tensor:
    """One text in blocks. query, key, value: [seq, heads, head_dim] -> [seq, heads, head_dim]."""
    length, size = len(query), plan.size or len(query)
    blocks = F.pad(query, (0, 0, 0, 0, 0, -length % size)).view(-1, size, *query.shape[1:])
    sides = [_neighbours(side, size) if plan.size else side[None] for side in (key, value)]
    if shared is not None:
        pairs = zip(sides, shared, strict=True)
        sides = [torch.cat([side, more.expand(len(side), *more.shape)], 1) for side, more in pairs]
    return ops.block_attention(blocks, sides[0], sides[1], plan.mask, scale).flatten(0, 1)[:length]


def _neighbours(side: Tensor, size: int) -> Tensor:
    """[seq, heads, head_dim] to [blocks, 3 * size, heads, head_dim]: each block between its neighbours, as views."""
    padded = F.pad(side, (0, 0, 0, 0, size, size + -len(side) % size))
    return padded.unfold(0, 3 * size, size).movedim(-1, 1)
