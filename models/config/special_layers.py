"""Configuration of layers with parts in addition to the usual sublayers, or with sublayers in another order."""

from __future__ import annotations

from dataclasses import dataclass

from models.config.errors import require
from models.config.layers import Activation, FeedForwardConfig, LayerConfig
from models.config.norms import NormConfig


@dataclass(frozen=True)
class ConvolutionLayerConfig(LayerConfig):
    """A layer with a convolution beside it: `norm(layer(x) + act(conv(x)))` (first layer of DeBERTa-v2)."""

    kernel_size: int = 3
    groups: int = 1
    activation: Activation = "tanh"
    norm: NormConfig = NormConfig("layer", 1e-7)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.kernel_size % 2 == 1, f"the kernel size of a convolution must be odd, got {self.kernel_size}")
        require(
            self.attention is not None and not self.attention.causal and self.mixer is None,
            "a layer with a convolution needs attention that is not causal, and no mixer",
        )


@dataclass(frozen=True, kw_only=True)
class ConformerLayerConfig(LayerConfig):
    """Feed-forward, self-attention, convolution and feed-forward, then a norm (Gulati et al. 2020, arXiv:2005.08100).

    feed_forward_norms: norm slots of both feed-forwards, with the factor of their results.
    first_feed_forward: the feed-forward before the attention.
    kernel_size, convolution_activation: kernel size of the convolution, which has separate weights for each channel,
        and the activation after it. The input norm of the convolution is configured like the input norm of the
        attention.
    convolution_bias: whether the convolution and the projections before and after it have biases.
    output_norm: norm at the end of the layer.
    """

    first_feed_forward: FeedForwardConfig
    kernel_size: int
    convolution_activation: Activation
    convolution_bias: bool
    output_norm: NormConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.kernel_size % 2 == 1, f"the kernel size of a convolution must be odd, got {self.kernel_size}")
        require(
            self.attention is not None and not self.attention.causal and self.feed_forward is not None,
            "a Conformer layer needs attention that is not causal, and two feed-forwards",
        )
        plain = self.mixer is None and not self.parallel and self.cross_attention is None
        require(plain, "a Conformer layer has no mixer, no cross-attention and no parallel sublayers")


@dataclass(frozen=True, kw_only=True)
class BottleneckLayerConfig(LayerConfig):
    """A layer whose sublayers are narrower than its input (Sun et al. 2020, arXiv:2004.02984).

    Its result is `norm(x + up(sublayers(norm(down(x)))))`. The sublayers are self-attention and several feed-forwards,
    one after the other.

    width: width of the sublayers. norm: norm after each of the two projections.
    feed_forwards: number of feed-forwards. All have the same configuration.
    """

    width: int
    norm: NormConfig
    feed_forwards: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width > 0 and self.feed_forwards > 0, "a bottleneck needs a width and a feed-forward")
        whole = self.attention is not None and self.feed_forward is not None
        plain = self.mixer is None and self.cross_attention is None and not self.parallel
        require(whole and plain, "a layer with a bottleneck has self-attention and feed-forwards")


@dataclass(frozen=True, kw_only=True)
class GlobalVectorsLayerConfig(LayerConfig):
    """A layer of an encoder with global vectors for each text (Phang et al. 2022, arXiv:2208.04347, section 3).

    Tokens attend to their block and to the global vectors of their text. Global vectors attend to all tokens of the
    text and to each other. They pass through the same projections and feed-forward as the tokens, after a separate
    norm.

    block_size: number of tokens of a block. shift: number of tokens by which the first block is shorter.
    """

    block_size: int
    shift: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.shift < self.block_size, f"a block of {self.block_size} tokens cannot shift by {self.shift}")
        plain = self.mixer is None and self.cross_attention is None and not self.parallel
        whole = self.attention is not None and not self.attention.causal and self.feed_forward is not None
        require(whole and plain, "a layer with global vectors has self-attention to whole texts and a feed-forward")


@dataclass(frozen=True, kw_only=True)
class LayerInputConfig(LayerConfig):
    """A layer that adds a separate vector per token at its end, and scales the sum (Gemma 3n and Gemma 4, 2025).

    Its result is `y = scale * (x + norm(project(act(gate(x)) * input)))`, where x is the result of the other sublayers
    and `input` is the vector that `PerLayerEmbeddingConfig` gives for this layer.

    input_width: width of the vector. None: there is no such vector, only the scale.
    activation: activation of the gate. input_norm: norm of the projected vector.
    output_scale: whether the layer multiplies its result by a learned factor.
    """

    input_width: int | None = None
    activation: Activation = "gelu_tanh"
    input_norm: NormConfig | None = None
    output_scale: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.input_width is None or self.input_width > 0, f"input_width must be positive: {self.input_width}")


@dataclass(frozen=True, kw_only=True)
class AlternatingLayerConfig(LayerInputConfig):
    """A layer of a stack with several streams of hidden states (Baykal et al. 2023, arXiv:2301.13310; Gemma 3n).

    The layer predicts all streams, computes the active stream, and corrects all streams by the error of the active
    stream's prediction. If x is the normed input of attention, `x + low_rank(x)` is added to the sum of residual and
    attention result, and the total is divided by the square root of two. The token's vector for this layer is added to
    all streams except the first.

    streams: number of streams. active: index of the stream that the layer computes.
    rank: rank of the projection `low_rank`. router_norm: configuration of the norm of the router's input, and of the
        norm of the projection.
    scales_correction: whether the corrected active stream is multiplied by a learned factor per feature, before the
        token's vector for this layer is computed from it.
    """

    streams: int
    active: int
    rank: int
    router_norm: NormConfig
    scales_correction: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.active < self.streams, f"stream {self.active} is not one of {self.streams} streams")
        require(self.streams > 1 and self.rank > 0, "a layer with streams needs two of them, and a positive rank")
        whole = self.attention is not None and self.feed_forward is not None and self.input_width is not None
        plain = self.mixer is None and self.cross_attention is None and not (self.parallel or self.output_scale)
        require(whole and plain, "a layer with streams needs self-attention, a feed-forward and a vector per token")
