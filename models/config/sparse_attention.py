"""What sparse attention is made of: self-attention over whole long texts that never looks at every pair of tokens.

Beside `models.config`, whose `AttentionConfig` these extend; `models.layers.sparse_attention` builds the modules.
No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.config import AttentionConfig, BucketBiasConfig, ConfigError


@dataclass(frozen=True)
class FirstToken:
    """The first token of each text is global."""


@dataclass(frozen=True)
class BeforeToken:
    """The tokens before the first `token_id` of a text are global: a question, up to its separator. Without such a
    token none is."""

    token_id: int


@dataclass(frozen=True)
class BandedAttentionConfig(AttentionConfig):
    """Attention within `window`, in time and memory of length times window."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.causal or self.window is None or self.window < 2 or self.score_cap is not None:
            raise ConfigError("banded attention has a window of at least 2, is not causal and caps no scores")


@dataclass(frozen=True)
class LongformerAttentionConfig(BandedAttentionConfig):
    """A window, and global tokens that every token sees and that see every token, these through projections of their
    own (Beltagy et al. 2020, arXiv:2004.05150, section 3.1)."""

    global_tokens: FirstToken | BeforeToken = FirstToken()


@dataclass(frozen=True, kw_only=True)
class TransientGlobalAttentionConfig(BandedAttentionConfig):
    """A window, and a summary of every `summary_tokens` tokens of the text, made anew by each layer, that each
    token sees (Guo et al. 2022, arXiv:2112.07916, section 3.2).

    summary_norm_eps: of the RMS norm of summaries. summary_buckets: of the distances between a token's own summary and
    another.
    """

    summary_tokens: int
    summary_norm_eps: float
    summary_buckets: BucketBiasConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.summary_tokens < 1:
            raise ConfigError(f"a summary is of at least one token, not {self.summary_tokens}")


@dataclass(frozen=True, kw_only=True)
class BlockSparseAttentionConfig(AttentionConfig):
    """Blocks of `block_size` tokens that see their neighbours and the text's first and last block, which see all of it
    (Zaheer et al. 2020, arXiv:2007.14062, section 2). Texts of up to `full_length` tokens are seen whole.

    num_random_blocks: of the paper; in inference the reference draws the first block that often for each other block.
    """

    block_size: int
    num_random_blocks: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.causal or self.window is not None or self.score_cap is not None:
            raise ConfigError("block sparse attention is not causal, has no window and caps no scores")
        if self.block_size < 1 or self.num_random_blocks < 0:
            raise ConfigError(f"{self.num_random_blocks} random blocks of {self.block_size} tokens cannot be")

    @property
    def full_length(self) -> int:
        """Longest text without blocks: two global blocks, three neighbours, and the random ones twice."""
        return (5 + 2 * self.num_random_blocks) * self.block_size
