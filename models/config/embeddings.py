"""Configuration of token embeddings and audio embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from models.config.errors import require
from models.config.norms import NormConfig
from models.config.positions import FairseqSinusoidalPositions, LearnedPositions, SinusoidalPositions


@dataclass(frozen=True)
class EmbeddingConfig:
    """Token embeddings times `scale`, plus optional position and token type embeddings, then an optional norm.

    num_token_types: 0 for none.
    norm: norm of the sum.
    width: width of all tables and of the norm; a linear layer then projects to the hidden size (Lan et al. 2020,
        arXiv:1909.11942, section 3.1). None: the hidden size, without that layer.
    token_norm: norm of the scaled token embeddings alone, before the sum.
    token_width: width of the token table alone; a matrix projects its rows to the hidden size (OPT-350m).
        None: the hidden size, without that matrix.
    num_task_types: rows of a table whose first row is added to every token before the norm (ERNIE). 0 for none.
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

    separator_id: tokens up to and including the first one with this id (a question) have type 0, later ones type 1.
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
    """Embeddings in which one token has a vector of its own in place of its scaled row (T5Gemma 2: end of image).

    The row of this token in the table is still its row of an output head that is the table.
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
    """Vectors of tokens that are the output of a stack without layers (StaticEmbedding, Model2Vec)."""


@dataclass(frozen=True)
class PerLayerEmbeddingConfig:
    """A small vector per token for each layer, the input of `LayerInputConfig` (Gemma Team 2025, Gemma 3n).

    It is `norm_of(projection(x) * hidden_size ** -0.5) + width ** 0.5 * row of a table`, divided by the root of two,
    where x is the output of the token embedding.

    vocab_size: rows of the table; token ids beyond the table use its first row. None: there is no table, and the vector
        is the projected part alone, undivided (EmbeddingGemma 2).
    width: width of the vector of one layer. norm: norm of the projected part.
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
    num_positions: positions after the convolutions.
    """

    num_mels: int
    num_positions: int
    vocab_size: ClassVar[int] = 0
    width: ClassVar[int | None] = None
    token_width: ClassVar[int | None] = None


MAX_SAMPLES = 16_000
"""Largest number of samples of one hidden state: a second. Published models have 25 ms. No tensor bounds a stride."""


@dataclass(frozen=True)
class WaveformEmbeddingConfig:
    """Convolutions over the samples of a recording, a projection to the hidden size, then positions.

    The positions are a further convolution, over the projected states, whose result is added to them. A GELU follows
    each convolution (Baevski et al. 2020, arXiv:2006.11477, section 2).

    widths, kernels, strides: outputs, kernel size and stride of each convolution over samples.
    bias: whether these convolutions have biases.
    normed: `first`: each channel of the first convolution is normalised over the whole recording. `all`: the channels
        of each output of each convolution are normalised together.
    input_norm: norm before the projection, None for no norm.
    position_kernel, position_groups: kernel size and groups of the convolution for positions.
    norm: norm of the sum of states and positions, None for no norm.
    """

    widths: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    bias: bool
    normed: Literal["first", "all"]
    input_norm: NormConfig | None
    position_kernel: int
    position_groups: int
    norm: NormConfig | None
    vocab_size: ClassVar[int] = 0
    width: ClassVar[int | None] = None
    token_width: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        counts = {len(self.widths), len(self.kernels), len(self.strides)}
        require(len(counts) == 1 and bool(self.widths), "each convolution needs a width, a kernel size and a stride")
        sizes = (*self.widths, *self.kernels, *self.strides, self.position_kernel, self.position_groups)
        require(min(sizes) > 0, "widths, kernel sizes, strides and groups of convolutions must be positive")
        longest = max(self.min_samples, self.samples_per_token)
        require(
            longest <= MAX_SAMPLES,
            f"'conv_stride' and 'conv_kernel': a hidden state of {longest:,} samples exceeds {MAX_SAMPLES:,}",
        )

    def num_tokens(self, samples: int) -> int:
        """Number of hidden states of a recording; 0 or less if it is shorter than `min_samples`."""
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            samples = (samples - kernel) // stride + 1
        return samples

    @property
    def samples_per_token(self) -> int:
        """Distance between two hidden states, in samples."""
        return math.prod(self.strides)

    @property
    def min_samples(self) -> int:
        """Length, in samples, of the shortest recording that gives a hidden state. It gives one."""
        samples = 1
        for kernel, stride in zip(reversed(self.kernels), reversed(self.strides), strict=True):
            samples = (samples - 1) * stride + kernel
        return samples
