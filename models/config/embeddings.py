"""Embeddings, of tokens and of sound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from models.config.errors import require
from models.config.norms import NormConfig
from models.config.positions import FairseqSinusoidalPositions, LearnedPositions, SinusoidalPositions


@dataclass(frozen=True)
class EmbeddingConfig:
    """Token embeddings times `scale`, plus positions and token types where there are some, then a norm.

    token_norm: of the scaled token embeddings alone, before anything is added.
    width: of all tables and the norm, whose result a linear layer then brings to the hidden size (Lan et al. 2020,
    arXiv:1909.11942, section 3.1); None for tables of the hidden size and no such layer.
    token_width: of the token table alone, whose rows a matrix brings to the hidden size before all else (OPT-350m).
    """

    vocab_size: int
    scale: float = 1.0
    positions: LearnedPositions | SinusoidalPositions | FairseqSinusoidalPositions | None = None
    num_token_types: int = 0
    norm: NormConfig | None = None
    width: int | None = None
    token_norm: NormConfig | None = None
    token_width: int | None = None

    def __post_init__(self) -> None:
        require(self.width is None or self.width > 0, f"embedding width must be positive, got {self.width}")
        narrow = self.token_width
        require(narrow is None or narrow > 0, f"token width must be positive, got {narrow}")
        require(self.width is None or narrow is None, "tables are narrow all together, or that of tokens alone")


@dataclass(frozen=True, kw_only=True)
class QuestionTypesEmbeddingConfig(EmbeddingConfig):
    """Token types that no tokenizer gives: 0 for a question with its separator and 1 for what follows, 0 for all where
    separator_id is None."""

    separator_id: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 1 if self.separator_id is None else 2
        require(self.num_token_types >= least, f"{self.num_token_types} token types, at least {least} are needed")


@dataclass(frozen=True)
class ConvolutionalEmbeddingConfig:
    """Two convolutions over frames of sound, a GELU after each, the second one with stride 2; then learned positions
    (Radford et al. 2022, arXiv:2212.04356, section 2.2). num_mels: numbers of a frame."""

    num_mels: int
    num_positions: int
    vocab_size: ClassVar[int] = 0
    width: ClassVar[int | None] = None
    token_width: ClassVar[int | None] = None
