"""Configuration of attention."""

from __future__ import annotations

from dataclasses import dataclass

from models.config.errors import require
from models.config.norms import NormConfig, QueryKeyNorm
from models.config.positions import RopeConfig


@dataclass(frozen=True)
class AttentionConfig:
    """Multi-head or grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245), self or cross."""

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
    """Queries, keys and values are clipped to [-clip, clip]. None for no clipping."""
    score_cap: float | None = None
    """Scores become `cap * tanh(score / cap)` before masking (Bello et al. 2016, arXiv:1611.09940). None for no cap."""
    output_gate: bool = False
    """The result is multiplied by the sigmoid of a projection of the input, before the output projection (Qiu et al.
    2025, arXiv:2505.06708). The projection has a bias where the queries have one."""
    output_scale: float = 1.0
    """Factor of the result of the output projection."""

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
        if self.rope is not None:
            require(self.rope.dim <= self.head_dim, f"rope dim {self.rope.dim} exceeds head_dim {self.head_dim}")


@dataclass(frozen=True)
class DisentangledConfig(AttentionConfig):
    """Disentangled self-attention: scores with terms for relative positions (He et al. 2021, arXiv:2006.03654, 3.1).

    The vector of a distance comes from the stack's `DistanceConfig`.
    content_to_position: add the product of a query and the vector of its distance to the key.
    position_to_content: add the product of a key and the vector of its distance to the query.
    own_projections: distances have projections of their own; otherwise they share those of queries and keys.
    position_key_bias: whether the key projection of distances has a bias.
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
        plain = self.rope is None and self.query_key_norm is None and self.window is None and self.score_cap is None
        require(
            plain and not self.causal and self.num_heads == self.num_kv_heads,
            "disentangled attention supports none of causal, rope, query_key_norm, window, score_cap and grouped heads",
        )


@dataclass(frozen=True)
class DistanceConfig:
    """Vectors of signed distances below `max_distance`, which all layers of a stack share, with an optional norm.

    num_buckets: number of vectors per side. The nearest `num_buckets // 2` distances have a vector each; farther ones
        share vectors, in steps that grow logarithmically (published code of He et al. 2021, arXiv:2111.09543).
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
        """Number of distance vectors for keys on one side of the query: before it, or after it."""
        return self.num_buckets or self.max_distance
