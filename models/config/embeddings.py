"""Configuration of token embeddings and audio embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from models.config.errors import require
from models.config.norms import NormConfig
from models.config.positions import FairseqSinusoidalPositions, LearnedPositions, SinusoidalPositions


@dataclass(frozen=True)
class EmbeddingConfig:
    """Token embeddings times `scale`, plus optional position and token type embeddings, then an optional norm.

    num_token_types: number of token types; 0 for no token type embeddings.
    norm: norm that is applied to the sum.
    width: width of all tables and of the norm; a linear layer then projects to the hidden size (Lan et al. 2020,
        arXiv:1909.11942, section 3.1). None: the hidden size, without that layer.
    token_norm: norm of the scaled token embeddings alone, before the sum.
    token_width: width of the token table alone; a matrix projects its rows to the hidden size (OPT-350m). None: the
        hidden size, without that matrix.
    num_task_types: number of rows in a table of task types. Its first row is added to every token before the norm
        (ERNIE). 0 for no such table.
    """

    vocab_size: int
    scale: float = 1.0
    positions: LearnedPositions | SinusoidalPositions | FairseqSinusoidalPositions | None = None
    num_token_types: int = 0
    norm: NormConfig | None = None
    width: int | None = None
    token_norm: NormConfig | None = None
    token_width: int | None = None
    num_task_types: int = 0

    def __post_init__(self) -> None:
        require(self.width is None or self.width > 0, f"embedding width must be positive, got {self.width}")
        narrow = self.token_width
        require(narrow is None or narrow > 0, f"token width must be positive, got {narrow}")
        require(self.width is None or narrow is None, "width and token_width exclude each other")


@dataclass(frozen=True, kw_only=True)
class QuestionTypesEmbeddingConfig(EmbeddingConfig):
    """Embeddings with token types that the model computes from the token ids, without the tokenizer.

    separator_id: tokens up to and including the first token with this id (a question) have type 0, later tokens type 1.
        None: all tokens have type 0.
    """

    separator_id: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 1 if self.separator_id is None else 2
        require(self.num_token_types >= least, f"at least {least} token types are needed, got {self.num_token_types}")


@dataclass(frozen=True, kw_only=True)
class NeighbourEmbeddingConfig(EmbeddingConfig):
    """Embeddings whose token part is projected from three rows of the token table (Sun et al. 2020, arXiv:2004.02984).

    These are the rows of the next token, of the token itself and of the previous token, in this order. Each has the
    width `token_width`. At the ends of the text, the missing row is zero. The projection has a bias.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = self.scale == 1.0 and self.token_norm is None and self.num_task_types == 0
        require(self.token_width is not None and plain, "neighbouring tokens need a token width, and no norm or scale")


@dataclass(frozen=True, kw_only=True)
class OwnVectorEmbeddingConfig(EmbeddingConfig):
    """Embeddings in which one token has a separate vector (T5Gemma 2: end of image).

    The vector replaces the token's scaled row of the embedding table. An output head that is tied to the table still
    uses the row.

    token_id: id of the token with the separate vector.
    """

    token_id: int

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = self.token_norm is None and self.width is None and self.token_width is None
        require(
            plain and 0 <= self.token_id < self.vocab_size,
            f"token {self.token_id} of {self.vocab_size} cannot have a vector of its own",
        )


@dataclass(frozen=True)
class StaticEmbeddingConfig(EmbeddingConfig):
    """Token vectors that are the output of the model, in a stack without layers (StaticEmbedding, Model2Vec)."""


@dataclass(frozen=True)
class PerLayerEmbeddingConfig:
    """A small vector per token and layer, which a layer with `LayerInputConfig` reads (Gemma Team 2025, Gemma 3n).

    The vector is `(norm(projection(x) * hidden_size ** -0.5) + width ** 0.5 * table[token_id]) / 2 ** 0.5`, where x is
    the output of the token embedding.

    vocab_size: number of rows of the table; token ids beyond the table use its first row. None: there is no table, and
        the vector is `norm(...)` alone, without the division (EmbeddingGemma 2).
    width: width of the vector of one layer.
    """

    vocab_size: int | None
    width: int
    norm: NormConfig

    def __post_init__(self) -> None:
        require(self.width > 0, f"the width of per-layer embeddings must be positive, got {self.width}")


@dataclass(frozen=True)
class ConvolutionalEmbeddingConfig:
    """Two convolutions over audio frames with a GELU after each, then learned positions.

    The second convolution has stride 2 (Radford et al. 2022, arXiv:2212.04356, section 2.2).
    num_mels: mel bins per frame.
    num_positions: number of positions after the convolutions, which is half the number of frames.
    """

    num_mels: int
    num_positions: int
    vocab_size: ClassVar[int] = 0
    width: ClassVar[int | None] = None
    token_width: ClassVar[int | None] = None
