"""One layer: self-attention, cross-attention where there is one, feed-forward, each between its norms."""

from __future__ import annotations

from copy import copy

from torch import Tensor, nn

from models.config import AttentionConfig, DisentangledConfig, LayerConfig
from models.config.sparse_attention import (
    BandedAttentionConfig,
    BlockSparseAttentionConfig,
    LongformerAttentionConfig,
    TransientGlobalAttentionConfig,
)
from models.layers.attention import Attention
from models.layers.disentangled_attention import DisentangledAttention
from models.layers.moe import make_feed_forward
from models.layers.norms import SublayerNorms
from models.layers.sparse_attention import (
    BandedAttention,
    BlockSparseAttention,
    LongformerAttention,
    TransientGlobalAttention,
)
from models.step_inputs import Step


class Layer(nn.Module):
    """index: the layer's number in its stack, under which a cache keeps its keys and values.

    forward: [tokens, hidden] -> [tokens, hidden], model dtype; of the last layer those rows that are wanted.
    """

    def __init__(self, config: LayerConfig, hidden_size: int, index: int) -> None:
        super().__init__()
        self.index, self.parallel = index, config.parallel
        self.attention = _make_self_attention(config.attention, hidden_size)
        self.attention_norms = SublayerNorms(config.attention_norms, hidden_size)
        self.cross_attention: Attention | None = None
        if config.cross_attention is not None:
            self.cross_attention = Attention(config.cross_attention, hidden_size)
            self.cross_attention_norms = SublayerNorms(config.cross_attention_norms, hidden_size)
        self.feed_forward = make_feed_forward(config.feed_forward, hidden_size)
        self.feed_forward_norms = SublayerNorms(config.feed_forward_norms, hidden_size)

    def again(self, index: int) -> Layer:
        """The same weights as another layer of the stack."""
        layer = copy(self)
        layer.index = index
        return layer

    def forward(self, x: Tensor, step: Step) -> Tensor:
        if self.parallel:
            return self._side_by_side(x, step)
        norms = self.attention_norms
        x = norms.after(step.wanted(self.index, x), step.self_attention(self.index, self.attention, norms.before(x)))
        if self.cross_attention is not None:
            norms = self.cross_attention_norms
            x = norms.after(x, step.cross_attention(self.index, self.cross_attention, norms.before(x)))
        norms = self.feed_forward_norms
        return norms.after(x, self.feed_forward(norms.before(x)))

    def _side_by_side(self, x: Tensor, step: Step) -> Tensor:
        read, wanted = self.attention_norms.before(x), step.wanted(self.index, x)
        own_norm = self.feed_forward_norms.input is not None
        fed = self.feed_forward_norms.before(wanted) if own_norm else step.wanted(self.index, read)
        x = self.attention_norms.after(wanted, step.self_attention(self.index, self.attention, read))
        return self.feed_forward_norms.after(x, self.feed_forward(fed))


def _make_self_attention(config: AttentionConfig, hidden_size: int) -> Attention:
    match config:
        case LongformerAttentionConfig():
            return LongformerAttention(config, hidden_size)
        case BlockSparseAttentionConfig():
            return BlockSparseAttention(config, hidden_size)
        case TransientGlobalAttentionConfig():
            return TransientGlobalAttention(config, hidden_size)
        case BandedAttentionConfig():
            return BandedAttention(config, hidden_size)
        case DisentangledConfig():
            return DisentangledAttention(config, hidden_size)
        case _:
            return Attention(config, hidden_size)
