"""Configuration of the kinds of attention. Every kind is a subclass of `AttentionConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from models.config.errors import require
from models.config.norms import NormConfig, QueryKeyNorm
from models.config.positions import RopeConfig


@dataclass(frozen=True)
class QueryScale:
    """Factor by which the queries at a position are multiplied:
    `1 + rate * log(1 + floor((position + offset) / length))`.

    Source: Nakanishi 2025, arXiv:2501.19399, as in the published code of Llama 4.
    """

    rate: float
    length: int
    offset: int = 0

    def __post_init__(self) -> None:
        require(self.length > 0, f"the length of a query scale must be positive, got {self.length}")


@dataclass(frozen=True)
class AttentionConfig:
    """Configuration of multi-head or grouped-query attention, as self-attention or cross-attention.

    scale: factor of the scores. causal: whether queries see no later keys.
    rope: rotary positions; None for attention without them.
    query_key_norm: norms of queries and keys; None for no norms.
    Source: Ainslie et al. 2023, arXiv:2305.13245 (grouped queries).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    causal: bool
    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    output_bias: bool = True
    rope: RopeConfig | None = None
    query_key_norm: QueryKeyNorm | None = None
    window: int | None = None
    """Sliding window: a query attends to its own position and the `window - 1` before it; if not causal, also to the
    `window - 1` after it. None for no window."""
    clip: float | None = None
    """Limit to which queries, keys and values are clipped: they become at least -clip and at most clip. None for no
    clipping."""
    score_cap: float | None = None
    """Scores become `cap * tanh(score / cap)` before masking (Bello et al. 2016, arXiv:1611.09940). None for no cap."""
    sinks: bool = False
    """Whether each query head has a learned score that takes part in the softmax and has no value, so that a head can
    attend to nothing (Xiao et al. 2024, arXiv:2309.17453, section 3.3; OpenAI 2025, arXiv:2508.10925)."""
    chunk: int | None = None
    """Size of the chunks, in positions, into which keys are divided. A query attends within its chunk only (Llama 4).
    None for no chunks."""
    value_norm: NormConfig | None = None
    """Norm that is applied to each value head. None for no norm."""
    values_of_keys: bool = False
    """Whether the value of a token is its key before key norm and rotation, without a value projection (Gemma 4)."""
    key_value_layer: int | None = None
    """Index of an earlier layer whose keys and values this layer reads (Brandon et al. 2024, arXiv:2405.12981). None
    for a layer that computes its keys and values."""
    query_scale: QueryScale | None = None
    """Factor of the queries that grows with their position. None for no such factor."""
    output_gate: bool = False
    """Whether the result is multiplied by the sigmoid of a projection of the input, before the output projection (Qiu
    et al. 2025, arXiv:2505.06708). The projection has a bias if the query projection has one."""
    output_scale: float = 1.0
    """Factor by which the result of the output projection is multiplied."""
    key_value_width: int | None = None
    """Width of the vectors from which keys and values are computed. None for the width from which queries are
    computed."""

    values_are_keys: ClassVar[bool] = False
    """Whether the keys serve as values too, so that a cache stores them once."""

    def __post_init__(self) -> None:
        require(self.num_heads > 0 and self.num_kv_heads > 0, "attention needs at least one head")
        require(
            self.num_heads % self.num_kv_heads == 0,
            f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}",
        )
        require(self.head_dim > 0, f"head_dim must be positive, got {self.head_dim}")
        require(self.window is None or self.window > 0, f"sliding window must be positive, got {self.window}")
        require(self.clip is None or self.clip > 0, f"clip must be positive, got {self.clip}")
        require(self.score_cap is None or self.score_cap > 0, f"score cap must be positive, got {self.score_cap}")
        width = self.key_value_width
        require(width is None or width > 0, f"the width of keys and values must be positive, got {width}")
        require(self.chunk is None or self.chunk > 0, f"attention chunk must be positive, got {self.chunk}")
        require(self.chunk is None or (self.causal and self.window is None), "chunks need causal attention, no window")
        require(not (self.sinks and self.score_cap), "sinks and capped scores exclude each other")
        if self.rope is not None:
            require(self.rope.dim <= self.head_dim, f"rope dim {self.rope.dim} exceeds head_dim {self.head_dim}")

    @property
    def is_plain(self) -> bool:
        """Whether all tokens attend to all, without rotary positions, grouped heads, head norms and score cap."""
        has_none = all(part is None for part in (self.rope, self.query_key_norm, self.window, self.score_cap))
        return has_none and not self.causal and self.num_heads == self.num_kv_heads


@dataclass(frozen=True, kw_only=True)
class LatentAttentionConfig(AttentionConfig):
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434, section 2.1).

    Keys and values of all heads are computed from one latent vector per token, and from a rotated part of the key that
    all heads share. The cache stores the latent vector and the rotated part. The matrices that would compute keys and
    values from the latent vector are applied to queries and results instead. This gives multi-query attention in which
    the keys are also the values: `num_kv_heads` is 1, and `head_dim` is the width of the rotated part plus that of
    the latent vector.

    latent_dim: width of the latent vector.
    plain_dim: width of the part of a head's query and key that does not rotate.
    value_dim: width of the values of a head.
    query_rank: width of the latent vector from which queries are computed. None: queries are projected from the input.
    norm: norm of the latent vectors.
    down_bias: whether the projections to the latent vectors have biases.
    """

    latent_dim: int
    plain_dim: int
    value_dim: int
    query_rank: int | None
    norm: NormConfig
    down_bias: bool = False

    values_are_keys: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.num_kv_heads == 1, "latent attention has one key-value head")
        require(self.rope is not None, "latent attention needs rotary positions")
        assert self.rope is not None
        require(
            self.head_dim == self.rope.dim + self.latent_dim,
            f"head_dim {self.head_dim} is not the sum of rope dim {self.rope.dim} and latent_dim {self.latent_dim}",
        )
        for name in ("latent_dim", "plain_dim", "value_dim"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        require(self.query_rank is None or self.query_rank > 0, f"query_rank must be positive, got {self.query_rank}")
        plain = self.query_key_norm is None and self.value_norm is None and self.clip is None
        require(
            plain and self.key_value_layer is None, "latent attention has neither head norms, clips nor shared keys"
        )

    @property
    def query_dim(self) -> int:
        """Width of a query head before the mapping to the space of the latent vectors: plain part plus rotated part."""
        assert self.rope is not None
        return self.plain_dim + self.rope.dim


@dataclass(frozen=True)
class JointAttentionConfig(AttentionConfig):
    """Self-attention of a decoder that attends to the encoder output in the same softmax (Zhang et al. 2025).

    The same projections compute the keys and values of the text and of the encoder output. Keys of the encoder output
    are not rotated, and a window does not exclude them. Source: arXiv:2512.14856, section 2.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = self.score_cap is None and not self.sinks and self.chunk is None and self.query_scale is None
        require(
            plain and self.causal and self.key_value_layer is None,
            "joint attention must be causal, and supports none of caps, sinks, chunks, query scales and shared keys",
        )


@dataclass(frozen=True, kw_only=True)
class BottleneckAttentionConfig(AttentionConfig):
    """Attention with queries and keys from a narrow projection of the input, and values from the input itself.

    `key_value_width` is the width of the input (Sun et al. 2020, arXiv:2004.02984, published code).

    norm: norm after the narrow projection. The projection is as wide as the result of the attention.
    """

    norm: NormConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = self.rope is None and self.query_key_norm is None and self.clip is None and not self.values_of_keys
        require(self.key_value_width is not None and plain, "attention with a bottleneck needs the width of its input")


@dataclass(frozen=True, kw_only=True)
class ConvolutionAttentionConfig(AttentionConfig):
    """Attention heads, and as many heads that convolve the values of neighbouring tokens instead (Jiang et al. 2020).

    The kernels of the convolution are computed from each token and its neighbours (ConvBERT, arXiv:2008.02496).

    kernel_size: number of tokens that a convolution reads, including the token itself.
    """

    kernel_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.kernel_size > 0 and self.kernel_size % 2 == 1, f"kernel size must be odd, got {self.kernel_size}")
        require(
            self.is_plain and self.clip is None,
            "attention beside convolutions supports none of causal, rope, head norms, windows, caps and grouped heads",
        )


@dataclass(frozen=True)
class GatedBiasAttentionConfig(AttentionConfig):
    """Self-attention with the score bias of the stack, which each query scales by a gate.

    Source: Chen et al. 2021, arXiv:2110.13900, section 3.1.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.is_plain,
            "a gated bias supports none of causal, rope, query_key_norm, window, score_cap and grouped heads",
        )


@dataclass(frozen=True)
class RelativeAttentionConfig(AttentionConfig):
    """Self-attention with scores that depend on distances, and two learned biases of the queries.

    The vector of a distance is a projection of its sines and cosines. Source: Dai et al. 2019, arXiv:1901.02860,
    section 3.3.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.is_plain,
            "attention with distances supports none of causal, rope, query_key_norm, window, score_cap, grouped heads",
        )


@dataclass(frozen=True)
class DisentangledConfig(AttentionConfig):
    """Disentangled self-attention: scores with terms for relative positions (He et al. 2021, arXiv:2006.03654, 3.1).

    The vector of a distance comes from the stack's `DistanceConfig`.
    content_to_position: whether scores include the product of the query and the vector of its distance to the key.
    position_to_content: whether scores include the product of the key and the vector of its distance to the query.
    own_projections: whether vectors of distances have separate projections. Otherwise the projections of queries and
        keys are applied to them.
    position_key_bias: whether the separate key projection of distances has a bias.
    """

    content_to_position: bool = True
    position_to_content: bool = True
    own_projections: bool = True
    position_key_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.content_to_position or self.position_to_content,
            "disentangled attention needs content_to_position or position_to_content",
        )
        require(
            self.is_plain,
            "disentangled attention supports none of causal, rope, query_key_norm, window, score_cap and grouped heads",
        )


@dataclass(frozen=True)
class DistanceConfig:
    """Learned vectors for the signed distances between tokens, with an optional norm. All layers of a stack share them.

    max_distance: all distances beyond it share one vector per side.
    num_buckets: number of vectors for keys on one side of the query. The nearest `num_buckets // 2` distances have a
        vector each. Farther distances share vectors, in ranges that grow logarithmically (published code of He et al.
        2021, arXiv:2111.09543).
        None: one vector per distance.
    """

    max_distance: int
    num_buckets: int | None = None
    norm: NormConfig | None = None

    def __post_init__(self) -> None:
        require(self.max_distance > 0, f"max_distance must be positive, got {self.max_distance}")
        if self.num_buckets is not None:
            exact = self.num_buckets // 2
            require(exact > 0, f"num_buckets must be at least 2, got {self.num_buckets}")
            require(
                self.max_distance - 1 > exact,
                f"max_distance {self.max_distance} is too short for {self.num_buckets} buckets",
            )

    @property
    def span(self) -> int:
        """Number of distance vectors for the keys before the query, which is also the number for the keys after it."""
        return self.num_buckets or self.max_distance
