"""Feed-forwards and whole layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.attention import AttentionConfig
from models.config.errors import require
from models.config.norms import NormConfig, NormSlots

Activation = Literal["relu", "gelu", "gelu_tanh", "gelu_quick", "silu", "tanh"]


@dataclass(frozen=True)
class FeedForwardConfig:
    """`down(act(up(x)))`, or `down(act(gate(x)) * up(x))` when gated (Shazeer 2020, arXiv:2002.05202)."""

    intermediate_size: int
    activation: Activation
    gated: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        require(self.intermediate_size > 0, f"intermediate_size must be positive, got {self.intermediate_size}")


@dataclass(frozen=True)
class MixtureOfExpertsConfig:
    """A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2022, arXiv:2101.03961): each token
    goes through the `experts_per_token` of `num_experts` feed-forwards that a router finds likeliest for it.

    expert: each of them. normalized: the shares of a token's experts sum to one; else each keeps its probability among
    all. shared: one more, for every token, times the sigmoid of a gate of its own (Qwen Team 2024, arXiv:2407.10671).
    """

    expert: FeedForwardConfig
    num_experts: int
    experts_per_token: int
    normalized: bool
    shared: FeedForwardConfig | None = None

    def __post_init__(self) -> None:
        require(
            0 < self.experts_per_token <= self.num_experts,
            f"{self.experts_per_token} experts per token cannot be chosen from {self.num_experts}",
        )


@dataclass(frozen=True)
class LayerConfig:
    """Self-attention, then cross-attention where there is one, then feed-forward, each with its norm slots.

    parallel: attention and feed-forward both start from the layer's input, and both results are added to it (Wang and
    Komatsuzaki 2021, GPT-J). A feed-forward without an input norm of its own then reads what attention reads.
    """

    attention: AttentionConfig
    attention_norms: NormSlots
    feed_forward: FeedForwardConfig | MixtureOfExpertsConfig
    feed_forward_norms: NormSlots
    cross_attention: AttentionConfig | None = None
    cross_attention_norms: NormSlots = NormSlots()
    parallel: bool = False

    def __post_init__(self) -> None:
        require(not (self.parallel and self.cross_attention), "a parallel layer has no cross-attention")
        if self.cross_attention is not None:
            require(not self.cross_attention.causal, "cross-attention is not causal")


@dataclass(frozen=True)
class ConvolutionLayerConfig(LayerConfig):
    """A layer with a convolution over its input beside it: `norm(layer(x) + act(conv(x)))` (DeBERTa-v2's first)."""

    kernel_size: int = 3
    groups: int = 1
    activation: Activation = "tanh"
    norm: NormConfig = NormConfig("layer", 1e-7)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.kernel_size % 2 == 1, f"a convolution needs an odd kernel, got {self.kernel_size}")
        require(not self.attention.causal, "a convolution sees what comes after")
