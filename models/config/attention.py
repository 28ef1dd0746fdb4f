"""Attention."""

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
    """Sliding window: a query sees its own position and the `window - 1` before it; if not causal, as many after it."""
    clip: float | None = None
    """Queries, keys and values stay between it and its negative."""
    score_cap: float | None = None
    """Scores stay below it: `cap * tanh(score / cap)`, before masks (Bello et al. 2016, arXiv:1611.09940)."""

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
    """Self-attention whose scores also compare contents with distances (He et al. 2021, arXiv:2006.03654, section 3.1).

    A distance is a vector of the stack's `DistanceConfig`. content_to_position: a query looks at the distance to each
    key; position_to_content: a key at the distance from each query. own_projections: distances have projections of
    their own; else those of queries and keys.
    """

    content_to_position: bool = True
    position_to_content: bool = True
    own_projections: bool = True
    position_key_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.content_to_position or self.position_to_content, "disentangled attention must look at distances")
        plain = self.rope is None and self.query_key_norm is None and self.window is None and self.score_cap is None
        require(plain and not self.causal and self.num_heads == self.num_kv_heads, "no such disentangled attention")


@dataclass(frozen=True)
class DistanceConfig:
    """A vector for each signed distance below `max_distance`, for all layers of a stack; then a norm, if any.

    num_buckets: with it, half as many distances on each side have a vector of their own and farther ones share, in
    steps that grow logarithmically (He et al. 2021, arXiv:2111.09543, by its published code).
    """

    max_distance: int
    num_buckets: int | None = None
    norm: NormConfig | None = None

    def __post_init__(self) -> None:
        require(self.max_distance > 0, f"max_distance must be positive, got {self.max_distance}")
        if self.num_buckets is not None:
            exact = self.num_buckets // 2
            require(exact > 0, f"{self.num_buckets} position buckets are too few")
            require(
                self.max_distance - 1 > exact,
                f"max_distance {self.max_distance} is too short for {self.num_buckets} buckets",
            )

    @property
    def span(self) -> int:
        """Vectors on each side of distance zero."""
        return self.num_buckets or self.max_distance
