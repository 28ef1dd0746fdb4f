"""Configuration of sparse self-attention for long texts.

Its time and memory grow linearly with the length of the text.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.config.attention import AttentionConfig
from models.config.errors import require
from models.config.positions import BucketBiasConfig


@dataclass(frozen=True)
class GlobalFirstToken:
    """The first token of each text is global: it attends to all tokens, and all tokens attend to it."""


@dataclass(frozen=True)
class GlobalTokensBefore:
    """The tokens before the first `token_id` of a text are global, for example a question before its separator.

    A text without this token has no global tokens.
    """

    token_id: int


@dataclass(frozen=True)
class BandedAttentionConfig(AttentionConfig):
    """Attention within a window, in time and memory proportional to the length of the text times the window.

    A query attends to the `window - 1` tokens on each side. At least one of `window` and `back_window` is 2 or more.
    back_window: if set, the limit for tokens before the query: it attends to the `back_window - 1` tokens before it.
    """

    back_window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        back = self.back_window
        require(back is None or back > 0, f"the window before a query must be positive, got {back}")
        require(
            not self.causal and self.window is not None and max(self.window, back or 0) >= 2 and self.score_cap is None,
            "banded attention needs a window of at least 2, and supports neither causal masks nor capped scores",
        )


@dataclass(frozen=True)
class LongformerAttentionConfig(BandedAttentionConfig):
    """Attention within a window and to global tokens (Beltagy et al. 2020, arXiv:2004.05150, section 3.1).

    Every token attends to the global tokens. Global tokens attend to all tokens, through separate projections.
    """

    global_tokens: GlobalFirstToken | GlobalTokensBefore = GlobalFirstToken()


@dataclass(frozen=True, kw_only=True)
class TransientGlobalAttentionConfig(BandedAttentionConfig):
    """Attention within a window and to summaries (Guo et al. 2022, arXiv:2112.07916, section 3.2).

    Each layer computes the summaries from its input: the sum of the tokens of a block, normalised.

    summary_tokens: number of tokens of a block, which has one summary.
    summary_norm_eps: epsilon of the RMS norm of the summaries.
    summary_buckets: score bias by the distance, in blocks, between the block of the query and the block of the summary.
    """

    summary_tokens: int
    summary_norm_eps: float
    summary_buckets: BucketBiasConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.summary_tokens >= 1, f"a summary needs at least one token, got {self.summary_tokens}")


@dataclass(frozen=True, kw_only=True)
class BlockSparseAttentionConfig(AttentionConfig):
    """Attention to neighbouring blocks, and to the first and the last block, which are global.

    Texts of up to `full_length` tokens have full attention. Source: Zaheer et al. 2020, arXiv:2007.14062, section 2.
    block_size: tokens per block.
    num_random_blocks: number of random blocks that a block attends to in the paper. In inference, the reference
        implementation uses the first block in place of each random block, and so does this server.
    """

    block_size: int
    num_random_blocks: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.causal and self.window is None and self.score_cap is None,
            "block sparse attention supports neither causal masks, windows nor capped scores",
        )
        require(
            self.block_size >= 1 and self.num_random_blocks >= 0,
            f"block_size {self.block_size} must be positive and num_random_blocks {self.num_random_blocks} at least 0",
        )

    @property
    def full_length(self) -> int:
        """Largest number of tokens with full attention: 2 global, 3 neighbouring, and 2 blocks per random block."""
        return (5 + 2 * self.num_random_blocks) * self.block_size
