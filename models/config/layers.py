"""Configuration of feed-forward sublayers and of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.attention import AttentionConfig, JointAttentionConfig
from models.config.errors import require
from models.config.norms import NormConfig, NormSlots
from models.config.state import MixerConfig

Activation = Literal["relu", "relu_squared", "gelu", "gelu_tanh", "gelu_quick", "silu", "sigmoid", "tanh"]


@dataclass(frozen=True)
class FeedForwardConfig:
    """A feed-forward network: `down(act(up(x)))`, or `down(act(gate(x)) * up(x))` if `gated`.

    Source of the gated variants: Shazeer 2020, arXiv:2002.05202.

    gate_scale: factor of `gate(x)` before the activation.
    limit: `gate(x)` is clipped to at most `limit`, and `up(x)` to [-limit, limit] (OpenAI 2025, arXiv:2508.10925). None
        for no clipping.
    up_offset: added to `up(x)` after clipping.
    sparsity: part of the values of `gate(x)` that becomes zero: the values below this quantile of a normal
        distribution. The value at the quantile is subtracted from the other values (Gemma 3n). 0: no value becomes
        zero.
    bias: whether `down` has a bias. inner_bias: whether `gate` and `up` have biases; None for the value of `bias`.
    """

    intermediate_size: int
    activation: Activation
    gated: bool = False
    bias: bool = True
    gate_scale: float = 1.0
    limit: float | None = None
    up_offset: float = 0.0
    sparsity: float = 0.0
    inner_bias: bool | None = None

    def __post_init__(self) -> None:
        require(self.intermediate_size > 0, f"intermediate_size must be positive, got {self.intermediate_size}")
        require(self.limit is None or self.limit > 0, f"limit must be positive, got {self.limit}")
        require(0 <= self.sparsity < 1, f"sparsity must be at least 0 and below 1, got {self.sparsity}")
        changes = self.is_clipped or self.gate_scale != 1.0
        require(self.gated or not changes, "gate_scale, limit, up_offset and sparsity need a gate")
        require(self.gate_scale == 1.0 or not self.is_clipped, "gate_scale excludes limit, up_offset and sparsity")

    @property
    def is_clipped(self) -> bool:
        """Whether `gate(x)` or `up(x)` is clipped, shifted or made sparse before they are multiplied."""
        return self.limit is not None or self.up_offset != 0 or self.sparsity > 0


@dataclass(frozen=True)
class XieluFeedForwardConfig:
    """A feed-forward network `down(xielu(up(x)))`. The activation xIELU has learned parameters.

    Source: Huang and Schlag 2024, arXiv:2411.13010.
    """

    intermediate_size: int
    bias: bool = False

    def __post_init__(self) -> None:
        require(self.intermediate_size > 0, f"intermediate_size must be positive, got {self.intermediate_size}")


@dataclass(frozen=True)
class RouterConfig:
    """How a mixture of experts chooses the experts of a token, and computes their shares: weights of their results.

    The experts with the best scores are chosen. Their scores are their shares.

    normalized: whether the shares of a token are divided by their sum plus `epsilon`.
    score: `softmax`: probability of the expert among all experts. `sigmoid`: sigmoid of the expert's logit.
        `sparse_mixer`: the experts of a token are chosen one after the other. The share of an expert is its probability
        among the experts that are not chosen yet and whose logits are within `tolerance` of the largest one (Liu et al.
        2024, arXiv:2409.12136).
    bias: whether the logits have a bias.
    correction: whether a float32 bias per expert is added to the scores for the choice, but not for the shares
        (DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2).
    groups: number of equal groups of experts. A token uses experts of `groups_per_token` groups only: the groups with
        the largest sums of their `group_members` best scores (DeepSeek-AI 2024, arXiv:2405.04434, section 2.2.2).
    scale: factor by which the shares are multiplied.
    input_norm: norm of the router's input, which is then divided by the square root of its width. None: neither norm
        nor division.
    expert_scale: whether the share of each expert has a learned factor.
    """

    normalized: bool
    score: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax"
    bias: bool = False
    correction: bool = False
    groups: int = 1
    groups_per_token: int = 1
    group_members: int = 1
    epsilon: float = 0.0
    scale: float = 1.0
    tolerance: float = 0.0
    input_norm: NormConfig | None = None
    expert_scale: bool = False

    def __post_init__(self) -> None:
        require(
            0 < self.groups_per_token <= self.groups,
            f"groups_per_token must be between 1 and the number of groups {self.groups}, got {self.groups_per_token}",
        )
        require(self.epsilon >= 0, f"router epsilon must not be negative, got {self.epsilon}")
        require(self.tolerance >= 0, f"router tolerance must not be negative, got {self.tolerance}")
        mixes = self.score == "sparse_mixer"
        require(
            not mixes or not (self.normalized or self.correction or self.groups > 1),
            "a sparse mixer has neither normalised shares nor a correction nor groups",
        )

    @property
    def chooses_by_logits(self) -> bool:
        """Whether the experts with the largest logits also have the largest scores.

        Scores then need not be computed first.
        """
        return not self.correction and self.groups == 1


@dataclass(frozen=True)
class MixtureOfExpertsConfig:
    """A mixture of experts: a router selects `experts_per_token` of `num_experts` feed-forward networks for each token.

    expert: configuration of each expert.
    shared: one more expert, which every token uses. None for no shared expert.
    shared_gate: whether the result of the shared expert is multiplied by the sigmoid of a learned gate (Qwen Team 2024,
        arXiv:2407.10671).
    weighs_inputs: whether the share of an expert multiplies its input instead of its result (Llama 4).
    latent_size: width of the inputs and results of the experts, if it is not the hidden size. A linear layer then
        projects the input to this width, and a second linear layer projects the sum of the results back (NVIDIA 2026,
        Nemotron 3). None: the hidden size, without these layers.
    latent_bias: whether these two linear layers have biases.
    capacity: largest number of tokens of one text that an expert computes. For later tokens its result is zero (Fedus
        et al. 2021, arXiv:2101.03961, section 2.2). None for no limit.
    Source: Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2022, arXiv:2101.03961.
    """

    expert: FeedForwardConfig
    num_experts: int
    experts_per_token: int
    router: RouterConfig
    shared: FeedForwardConfig | None = None
    shared_gate: bool = False
    weighs_inputs: bool = False
    latent_size: int | None = None
    latent_bias: bool = False
    capacity: int | None = None

    def __post_init__(self) -> None:
        require(self.latent_size is None or self.latent_size > 0, f"latent_size must be positive: {self.latent_size}")
        require(
            self.latent_size is None or not self.weighs_inputs, "shares of inputs and latent experts exclude each other"
        )
        require(self.capacity is None or self.capacity > 0, f"expert capacity must be positive, got {self.capacity}")
        require(self.capacity is None or self.experts_per_token == 1, "an expert capacity needs one expert per token")
        require(
            0 < self.experts_per_token <= self.num_experts,
            f"experts_per_token must be between 1 and num_experts {self.num_experts}, got {self.experts_per_token}",
        )
        scaled = self.expert.gate_scale != 1.0 or (self.shared is not None and self.shared.gate_scale != 1.0)
        require(not scaled, "experts have no factor of the gate")
        require(self.expert.sparsity == 0, "experts have no sparse gate")
        require(self.shared is not None or not self.shared_gate, "a gate of a shared expert needs a shared expert")
        groups = self.router.groups
        require(self.num_experts % groups == 0, f"num_experts {self.num_experts} is not a multiple of {groups} groups")
        members = self.num_experts // groups
        require(
            0 < self.router.group_members <= members,
            f"group_members must be between 1 and the {members} experts of a group, got {self.router.group_members}",
        )
        require(
            self.experts_per_token <= members * self.router.groups_per_token,
            f"experts_per_token {self.experts_per_token} exceeds the {members} experts of each of "
            f"{self.router.groups_per_token} groups",
        )


@dataclass(frozen=True)
class FeedForwardSumConfig:
    """The sum of several feed-forward networks with the same input: `sum(output_norm(f(input_norm(x))))`.

    If a part is a mixture of experts, its router reads x before the input norm (Gemma Team 2026, Gemma 4).

    parts: each network with its norm slots, which have neither a residual norm nor a scale.
    """

    parts: tuple[tuple[FeedForwardConfig | MixtureOfExpertsConfig, NormSlots], ...]

    def __post_init__(self) -> None:
        require(len(self.parts) > 1, "a sum of feed-forwards needs at least two")
        plain = all(norms.residual is None and norms.scale == 1.0 for _, norms in self.parts)
        require(plain, "the feed-forwards of a sum have neither residual norms nor factors")


@dataclass(frozen=True)
class LayerConfig:
    """A layer: self-attention or a mixer, optional cross-attention and feed-forward network, each with its norm slots.

    attention: None for a layer without self-attention.
    attention_norms: norms of the self-attention, or of the mixer that replaces it or runs in parallel to it.
    feed_forward: None for a layer without feed-forward.
    parallel: whether attention and feed-forward both read the input of the layer, to which both results are added (Wang
        and Komatsuzaki 2021, GPT-J). A feed-forward without an input norm then reads the normed input of the attention.
    mixer: a part that reads earlier tokens through a state of constant size. In a layer with self-attention, both read
        the same normed input, and their results are added (Falcon-H1). None for a layer without a mixer.
    """

    attention: AttentionConfig | None
    attention_norms: NormSlots
    feed_forward: FeedForwardConfig | XieluFeedForwardConfig | MixtureOfExpertsConfig | FeedForwardSumConfig | None
    feed_forward_norms: NormSlots
    cross_attention: AttentionConfig | None = None
    cross_attention_norms: NormSlots = NormSlots()
    parallel: bool = False
    mixer: MixerConfig | None = None

    def __post_init__(self) -> None:
        require(not (self.parallel and self.cross_attention), "a parallel layer has no cross-attention")
        whole = self.attention is not None and self.feed_forward is not None
        require(whole or not self.parallel, "a parallel layer needs attention and a feed-forward")
        require(
            self.attention is not None or self.mixer is not None or self.feed_forward is not None,
            "a layer needs attention, a mixer or a feed-forward",
        )
        require(self.mixer is None or not self.parallel, "a parallel layer has no mixer")
        if self.cross_attention is not None:
            require(not self.cross_attention.causal, "cross-attention is not causal")
            require(whole and self.mixer is None, "a layer with cross-attention needs self-attention and feed-forward")
        if self.mixer is not None and self.attention is not None:
            require(self.attention.causal, "attention in parallel with a mixer must be causal")
        if self.has_capacity:
            whole_texts = self.attention is not None and not self.attention.causal and not self.parallel
            require(whole_texts, "experts with a capacity need attention to whole texts")

    @property
    def reads_source(self) -> bool:
        """Whether the layer attends to the encoder output."""
        return self.cross_attention is not None or isinstance(self.attention, JointAttentionConfig)

    @property
    def has_capacity(self) -> bool:
        """Whether each expert of the layer computes only a limited number of tokens of a text."""
        return isinstance(self.feed_forward, MixtureOfExpertsConfig) and self.feed_forward.capacity is not None
