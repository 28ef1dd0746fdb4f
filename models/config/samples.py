"""Configuration of embeddings that compute hidden states from the samples of a recording."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from models.config.errors import require
from models.config.norms import NormConfig

SAMPLE_RATE = 16_000
MAX_SAMPLES = SAMPLE_RATE
"""Largest allowed number of samples per hidden state: one second. Published models have 25 ms. A limit is needed
because no tensor of a checkpoint limits a stride."""


class SamplesEmbeddingConfig(ABC):
    """An embedding of the samples of a recording.

    The first hidden state needs `min_samples` samples, and each further hidden state `samples_per_token` more.
    """

    vocab_size: ClassVar[int] = 0
    width: ClassVar[int | None] = None
    token_width: ClassVar[int | None] = None

    @property
    @abstractmethod
    def samples_per_token(self) -> int:
        """Number of samples from one hidden state to the next."""

    @property
    @abstractmethod
    def min_samples(self) -> int:
        """Number of samples of the shortest recording that gives a hidden state."""

    def num_tokens(self, samples: int) -> int:
        """Number of hidden states of a recording; 0 or less if it is shorter than `min_samples`."""
        return (samples - self.min_samples) // self.samples_per_token + 1


def _require_convolutions(widths: Sequence[int], kernels: Sequence[int], strides: Sequence[int]) -> None:
    counts = {len(widths), len(kernels), len(strides)}
    require(len(counts) == 1 and bool(widths), "each convolution needs a width, a kernel size and a stride")
    require(min(*widths, *kernels, *strides) > 0, "widths, kernel sizes and strides of convolutions must be positive")


def _min_samples(kernels: Sequence[int], strides: Sequence[int]) -> int:
    """Number of samples of the shortest recording that a stack of convolutions without padding can read."""
    samples = 1
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        samples = (samples - 1) * stride + kernel
    return samples


@dataclass(frozen=True)
class WaveformEmbeddingConfig(SamplesEmbeddingConfig):
    """Convolutions over the samples of a recording, a projection to the hidden size, then positions.

    The positions are the result of a further convolution over the projected states, and are added to these states. A
    GELU follows each convolution (Baevski et al. 2020, arXiv:2006.11477, section 2).

    widths, kernels, strides: number of outputs, kernel size and stride of each convolution over samples.
    bias: whether these convolutions have biases.
    normed: `first`: only the first convolution is followed by a norm, of each channel over the whole recording. `all`:
        each convolution is followed by a norm, over the channels of each output.
    input_norm: norm before the projection, None for no norm.
    position_kernel, position_groups: kernel size and groups of the convolution for positions.
    norm: norm after positions are added to the states, None for no norm.
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

    def __post_init__(self) -> None:
        _require_convolutions(self.widths, self.kernels, self.strides)
        require(
            self.position_kernel > 0 and self.position_groups > 0,
            "kernel size and groups of the convolution for positions must be positive",
        )
        longest = max(self.min_samples, self.samples_per_token)
        require(
            longest <= MAX_SAMPLES,
            f"'conv_stride' and 'conv_kernel': a hidden state of {longest:,} samples exceeds {MAX_SAMPLES:,}",
        )

    @property
    def samples_per_token(self) -> int:
        return math.prod(self.strides)

    @property
    def min_samples(self) -> int:
        return _min_samples(self.kernels, self.strides)


@dataclass(frozen=True)
class FramedWaveformEmbeddingConfig(SamplesEmbeddingConfig):
    """Frames of samples that are normalised, compressed and projected, then two causal convolutions of stride 2.

    A last frame that the samples do not fill counts as zeros. The compression is `asinh(exp(log_scale) * x)`. A SiLU
    follows the projection and the first convolution.

    frame_samples: number of samples of a frame.
    channels: number of outputs, both of the projection and of the second convolution. The first convolution has
        twice as many.
    """

    frame_samples: int
    channels: int
    kernel: ClassVar[int] = 5

    def __post_init__(self) -> None:
        require(0 < self.frame_samples <= MAX_SAMPLES // 4, f"a frame of {self.frame_samples:,} samples is too long")
        require(self.channels > 0, f"the width of frames must be positive, got {self.channels}")

    @property
    def samples_per_token(self) -> int:
        return 4 * self.frame_samples

    @property
    def min_samples(self) -> int:
        return 1


HOP_SAMPLES = 160
"""Number of samples from one log-mel frame to the next."""


@dataclass(frozen=True)
class LogMelSubsamplingConfig(SamplesEmbeddingConfig):
    """Log-mel frames, normalised, then convolutions that halve the numbers of frames and bands, and a projection.

    Source: Rekesh et al. 2023, arXiv:2305.05084, section 3.
    num_mels: number of mel bands of a frame.
    channels, kernel: number of outputs of the convolutions, and their kernel size, which is odd.
    num_halvings: number of convolutions with stride 2. scale: factor by which the hidden states are multiplied.
    dither: standard deviation of the noise that is added to the samples; 0 for no noise. Recordings with equally many
        samples get the same noise.
    """

    num_mels: int
    channels: int
    kernel: int
    num_halvings: int
    scale: float
    dither: float = 0.0

    def __post_init__(self) -> None:
        require(self.kernel % 2 == 1 and self.kernel <= 31, f"a kernel size of {self.kernel} is not odd, or above 31")
        require(
            self.num_halvings > 0 and self.num_mels % (1 << self.num_halvings) == 0 and self.num_mels <= 1024,
            f"{self.num_mels} mel bands, at most 1,024, cannot be halved {self.num_halvings} times",
        )
        require(self.channels > 0, f"convolutions need channels, got {self.channels}")

    @property
    def samples_per_token(self) -> int:
        return HOP_SAMPLES << self.num_halvings

    @property
    def min_samples(self) -> int:
        return HOP_SAMPLES


@dataclass(frozen=True)
class NormedWaveformEmbeddingConfig(SamplesEmbeddingConfig):
    """Convolutions over the samples of a recording. The outputs of the last convolution are the hidden states.

    A tanh and a norm follow the first convolution, which has no bias; the norm is over all channels and outputs of the
    recording together. A GELU follows each of the other convolutions. Source: Jeffries et al. 2024, arXiv:2410.15608.

    widths, kernels, strides: number of outputs, kernel size and stride of each convolution.
    """

    widths: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        _require_convolutions(self.widths, self.kernels, self.strides)

    @property
    def samples_per_token(self) -> int:
        return math.prod(self.strides)

    @property
    def min_samples(self) -> int:
        return _min_samples(self.kernels, self.strides)
