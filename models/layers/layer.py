"""A layer of a stack: self-attention or a mixer, optional cross-attention and feed-forward, each with norms."""

from __future__ import annotations

from copy import copy

from torch import Tensor, nn

from models.config import (
    AttentionConfig,
    BottleneckAttentionConfig,
    ConvolutionAttentionConfig,
    DisentangledConfig,
    GatedBiasAttentionConfig,
    GatedDeltaConfig,
    JointAttentionConfig,
    LatentAttentionConfig,
    LayerConfig,
    MixerConfig,
    RelativeAttentionConfig,
    ShortConvolutionConfig,
    StateSpaceConfig,
)
from models.config.sparse_attention import (
    BandedAttentionConfig,
    BlockSparseAttentionConfig,
    LongformerAttentionConfig,
    TransientGlobalAttentionConfig,
)
from models.layers.attention import Attention
from models.layers.bottleneck_attention import BottleneckAttention
from models.layers.convolution_attention import ConvolutionAttention
from models.layers.disentangled_attention import DisentangledAttention
from models.layers.gated_bias_attention import GatedBiasAttention
from models.layers.gated_delta import GatedDelta
from models.layers.joint_attention import JointAttention
from models.layers.latent_attention import LatentAttention
from models.layers.mixer import Mixer
from models.layers.moe import make_feed_forward
from models.layers.norms import SublayerNorms
from models.layers.relative_attention import RelativeAttention
from models.layers.short_convolution import ShortConvolution
from models.layers.sparse_attention import (
    BandedAttention,
    BlockSparseAttention,
    LongformerAttention,
    TransientGlobalAttention,
)
from models.layers.state_space import StateSpace
from models.steps.step_inputs.base import StepInputs


class Layer(nn.Module):
    """One layer of a stack: self-attention or a mixer, optional cross-attention and feed-forward.

    index: index of the layer in its stack, which also selects its keys and values in a cache.
    forward: [tokens, hidden] -> [tokens, hidden], model dtype. The last layer may return only the output rows of the
        step.
    """

    def __init__(self, config: LayerConfig, hidden_size: int, index: int) -> None:
        super().__init__()
        self.index, self.parallel = index, config.parallel
        self.attention = None if config.attention is None else _make_self_attention(config.attention, hidden_size)
        self.mixer = None if config.mixer is None else make_mixer(config.mixer, hidden_size)
        self.attention_norms = SublayerNorms(config.attention_norms, hidden_size)
        self.cross_attention: Attention | None = None
        if config.cross_attention is not None:
            self.cross_attention = Attention(config.cross_attention, hidden_size)
            self.cross_attention_norms = SublayerNorms(config.cross_attention_norms, hidden_size)
        self.feed_forward = None if config.feed_forward is None else make_feed_forward(config.feed_forward, hidden_size)
        self.feed_forward_norms = SublayerNorms(config.feed_forward_norms, hidden_size)

    def at_index(self, index: int) -> Layer:
        """A copy of the layer for another index of the stack, with the same weights in the same memory."""
        layer = copy(self)
        layer.index = index
        return layer

    @property
    def source_attention(self) -> Attention | None:
        """The attention that reads keys and values of the encoder output; None if the layer does not read it."""
        return self.attention if isinstance(self.attention, JointAttention) else self.cross_attention

    def forward(self, x: Tensor, step: StepInputs) -> Tensor:
        if self.parallel:
            return self._forward_parallel(x, step)
        norms = self.attention_norms
        result: Tensor | None = None
        if self.attention is None and self.mixer is None:
            x = step.select_rows(self.index, x)
        else:
            hidden, x = norms.norm_input(x), step.select_rows(self.index, x)
            result = self._mix_tokens(hidden, step)
        if self.feed_forward is None:
            return x if result is None else norms.add_residual(x, result)
        if self.cross_attention is not None:
            assert result is not None
            x, hidden = norms.add_residual_and_norm(x, result, self.cross_attention_norms)
            norms, result = self.cross_attention_norms, step.cross_attention(self.index, self.cross_attention, hidden)
        if result is None:
            hidden = self.feed_forward_norms.norm_input(x)
        else:
            x, hidden = norms.add_residual_and_norm(x, result, self.feed_forward_norms)
        return self.feed_forward_norms.add_residual(x, self._run_feed_forward(hidden, step))

    def _run_feed_forward(self, hidden: Tensor, step: StepInputs) -> Tensor:
        """Compute the feed-forward. hidden: [tokens, hidden], normalised. Returns [tokens, hidden]."""
        assert self.feed_forward is not None
        result: Tensor = self.feed_forward(hidden)
        return result

    def _mix_tokens(self, hidden: Tensor, step: StepInputs) -> Tensor:
        """Compute self-attention or the mixer. With both, return the sum of their results.

        hidden: [tokens, hidden], normalised.
        """
        if self.mixer is None:
            assert self.attention is not None
            return step.self_attention(self.index, self.attention, hidden)
        mixed = step.mix(self.index, self.mixer, hidden)
        return mixed if self.attention is None else mixed + step.self_attention(self.index, self.attention, hidden)

    def _forward_parallel(self, x: Tensor, step: StepInputs) -> Tensor:
        """Compute a layer in which attention and feed-forward both read the input of the layer.

        A feed-forward without an input norm reads the normalised input of attention.
        """
        assert self.attention is not None and self.feed_forward is not None
        attention_input, x = self.attention_norms.norm_input(x), step.select_rows(self.index, x)
        if self.feed_forward_norms.input is None:
            feed_forward_input = step.select_rows(self.index, attention_input)
        else:
            feed_forward_input = self.feed_forward_norms.norm_input(x)
        x = self.attention_norms.add_residual(x, step.self_attention(self.index, self.attention, attention_input))
        return self.feed_forward_norms.add_residual(x, self.feed_forward(feed_forward_input))


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
        case ConvolutionAttentionConfig():
            return ConvolutionAttention(config, hidden_size)
        case GatedBiasAttentionConfig():
            return GatedBiasAttention(config, hidden_size)
        case RelativeAttentionConfig():
            return RelativeAttention(config, hidden_size)
        case DisentangledConfig():
            return DisentangledAttention(config, hidden_size)
        case BottleneckAttentionConfig():
            return BottleneckAttention(config, hidden_size)
        case JointAttentionConfig():
            return JointAttention(config, hidden_size)
        case LatentAttentionConfig():
            return LatentAttention(config, hidden_size)
        case _:
            return Attention(config, hidden_size)


def make_mixer(config: MixerConfig, hidden_size: int) -> Mixer:
    """Build the mixer of a configuration."""
    match config:
        case ShortConvolutionConfig():
            return ShortConvolution(config, hidden_size)
        case GatedDeltaConfig():
            return GatedDelta(config, hidden_size)
        case StateSpaceConfig():
            return StateSpace(config, hidden_size)
