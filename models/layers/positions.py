"""Position encodings: rotations of queries and keys, sinusoidal embeddings, and biases of attention scores.

Learned positions are an `EmbeddingTable` of `models.layers.embeddings`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backends.attention_metadata import Distances, KeyBias
from models.config import (
    AlibiConfig,
    BucketBiasConfig,
    DynamicScaling,
    KeyAlibiConfig,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    QueryScale,
    RopeConfig,
    YarnScaling,
)
from models.layers.linear import parameter

_MIN_CACHED_POSITIONS = 1024
"""Smallest number of positions for which angles are computed and cached."""


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines by which rotary position embedding rotates the queries and keys of a step.

    All layers with the same rotary configuration share one instance.

    cos_table, sin_table: [positions, 1, dim / 2], float32.
    positions: [tokens], int64, the table row of each token; None where row i belongs to token i.
    """

    config: RopeConfig
    cos_table: Tensor
    sin_table: Tensor
    positions: Tensor | None = None

    def select(self, rows: Tensor) -> Rotation:
        """The rotation for some of the tokens. rows: [n], int64, indices of the tokens."""
        return replace(self, positions=rows if self.positions is None else self.positions[rows])

    @cached_property
    def cos(self) -> Tensor:
        """Cosines of the tokens' angles: [tokens, 1, dim / 2], float32."""
        return self.cos_table if self.positions is None else self.cos_table[self.positions]

    @cached_property
    def sin(self) -> Tensor:
        """Sines of the tokens' angles: [tokens, 1, dim / 2], float32."""
        return self.sin_table if self.positions is None else self.sin_table[self.positions]


@dataclass(frozen=True)
class PositionEncodings:
    """Everything that positions contribute to the attention of a stack in one step.

    rotations: rotations of queries and keys, by configuration.
    score_bias: bias by distance, model dtype, [heads, 2 * length - 1] if all layers share it, else
        [layers, heads, 2 * length - 1]; or a bias by key; or None.
    distances: vectors of distances for disentangled attention, or None.
    query_scales: factors by which queries are multiplied, [tokens, 1], float32, by configuration.
    """

    rotations: Mapping[RopeConfig, Rotation]
    score_bias: Tensor | KeyBias | None = None
    distances: Distances | None = None
    query_scales: Mapping[QueryScale, Tensor] = field(default_factory=dict)


def inverse_frequencies(config: RopeConfig) -> Tensor:
    """Rotation angle per position for each pair of dimensions, in radians: [dim / 2], float32, on the CPU.

    With a scaling that depends on the length, these are the frequencies up to the original length.
    Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2; the classes in `models.config.positions` name the sources
    of the scalings.
    """
    exponents = torch.arange(0, config.dim, 2, device="cpu").float() / config.dim
    frequencies = 1.0 / config.theta**exponents
    if config.turning_pairs is not None:
        frequencies[config.turning_pairs :] = 0.0
    match config.scaling:
        case LinearScaling(factor=factor):
            return frequencies / factor
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling)
        case YarnScaling() as scaling:
            return _yarn(frequencies, config, scaling)
        case LongScaling(short_factors=factors):
            return frequencies / torch.tensor(factors, device="cpu")
    return frequencies


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Keep high frequencies, divide low frequencies by the factor, and interpolate between them, as in Llama 3.1.

    frequencies, result: [dim / 2], float32, radians per position.
    """
    rotations = scaling.original_max_positions * frequencies / (2 * math.pi)
    share = (rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share = share.clamp(0, 1)
    return share * frequencies + (1 - share) * frequencies / scaling.factor


def _yarn(frequencies: Tensor, config: RopeConfig, scaling: YarnScaling) -> Tensor:
    """Keep high frequencies, divide low frequencies by the factor, and interpolate between them, as in YaRN.

    frequencies, result: [dim / 2], float32, radians per position.
    """

    def dimension(rotations: float) -> float:
        """Index of the pair of dimensions that makes this number of full rotations over the original length.

        May be a fraction.
        """
        span = scaling.original_max_positions / (rotations * 2 * math.pi)
        return config.dim * math.log(span) / (2 * math.log(config.theta))

    first, last = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, config.dim - 1)
    width = last - first or 0.001
    share = 1 - ((torch.arange(len(frequencies), device="cpu").float() - first) / width).clamp(0, 1)
    return share * frequencies + (1 - share) * frequencies / scaling.factor


class Rotary:
    """Computes the rotations of steps for one rotary configuration.

    Has no parameters; frequencies and tables move to the device of the positions.
    Angles that depend on the position only are cached, for all positions up to the longest sequence so far.
    """

    def __init__(self, config: RopeConfig) -> None:
        self.config = config
        self._frequencies = inverse_frequencies(config)
        self._tables = torch.empty(0), torch.empty(0)
        self._depends_on_length = config.depends_on_length
        self._magnitude = 1.0
        if isinstance(config.scaling, YarnScaling | LongScaling):
            self._magnitude = config.scaling.magnitude

    def __call__(self, positions: Tensor, length: int, rope_lengths: Tensor | None = None) -> Rotation:
        """Compute the rotation of a step's tokens.

        positions: [tokens], int64, below `length`.
        rope_lengths: [tokens], int64, the sequence length that determines each token's angles; may be None unless
            `config.depends_on_length`.
        """
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
            self._tables = torch.empty(0), torch.empty(0)
        if self._depends_on_length:
            assert rope_lengths is not None, "this rotation depends on the sequence length"
            return Rotation(self.config, *self._cos_sin(positions, self._frequencies_of(rope_lengths[:, None, None])))
        if self._tables[0].shape[0] < length:
            rows = max(_MIN_CACHED_POSITIONS, 1 << (length - 1).bit_length())
            self._tables = self._cos_sin(torch.arange(rows, device=positions.device), self._frequencies)
        return Rotation(self.config, *self._tables, positions)

    def _cos_sin(self, positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotation angles, times the magnitude of the scaling.

        positions: [positions], int64. frequencies: radians per position, [dim / 2] or [positions, 1, dim / 2], float32.
        Returns two tensors, [positions, 1, dim / 2], float32.
        """
        angles = positions[:, None, None].float() * frequencies
        cos, sin = angles.cos(), angles.sin()
        if self._magnitude != 1.0:
            cos, sin = cos * self._magnitude, sin * self._magnitude
        return cos, sin

    def _frequencies_of(self, lengths: Tensor) -> Tensor:
        """Radians per position, for scalings that depend on the sequence length.

        lengths: [tokens, 1, 1], int64. Returns [tokens, 1, dim / 2], float32.
        """
        config, scaling = self.config, self.config.scaling
        assert isinstance(scaling, DynamicScaling | LongScaling)
        exponents = torch.arange(0, config.dim, 2, device=lengths.device).float() / config.dim
        if isinstance(scaling, LongScaling):
            factors = torch.tensor(scaling.long_factors, device=lengths.device)
            longer = 1.0 / (factors * config.theta**exponents)
        else:
            stretch = scaling.factor * lengths / scaling.original_max_positions - (scaling.factor - 1)
            base = config.theta * stretch.clamp(min=1) ** (config.dim / (config.dim - 2))
            longer = 1.0 / base**exponents
        return torch.where(lengths > scaling.original_max_positions, longer, self._frequencies)


def query_scale(config: QueryScale, positions: Tensor) -> Tensor:
    """Factor of the queries at some positions: `1 + rate * log(1 + floor((position + offset) / length))`.

    positions: [tokens], int64. Returns [tokens, 1], float32.
    """
    chunks = torch.floor((positions.float() + config.offset) / config.length)
    return (1 + config.rate * torch.log1p(chunks))[:, None]


def sinusoids(num_positions: int, width: int, pairing: Literal["half", "interleaved"] = "half") -> Tensor:
    """Sinusoidal position embeddings: [num_positions, width], float32, on the CPU.

    pairing: `half` has sines in the first half of the columns and cosines in the second; `interleaved` has sines in the
        even columns and cosines in the odd ones.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5. Computed in float64, as in the published checkpoints.
    """
    sines = (width + 1) // 2
    rates = 10000.0 ** (-2 * torch.arange(sines, dtype=torch.float64, device="cpu") / width)
    angles = torch.arange(num_positions, dtype=torch.float64, device="cpu")[:, None] * rates
    if pairing == "interleaved":
        return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :width].float()
    return torch.cat([angles.sin(), angles[:, : width - sines].cos()], dim=1).float()


def fairseq_sinusoids(num_positions: int, width: int, first: int) -> Tensor:
    """Sinusoidal position embeddings of fairseq: [num_positions, width], float32, on the CPU.

    first: position of row 0.
    The longest wavelength is 2 pi * 10000 positions; the last column of an odd width is zero.
    Source: Ott et al. 2019, arXiv:1904.01038; computed in float32, as fairseq does at each start.
    """
    half = width // 2
    rates = torch.exp(torch.arange(half, device="cpu").float() * -(math.log(10000.0) / max(half - 1, 1)))
    angles = torch.arange(first, first + num_positions, device="cpu").float()[:, None] * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))


def bucket_of_distance(distance: Tensor, config: BucketBiasConfig) -> Tensor:
    """Index of the bucket of each distance, which is `key position - query position`. Any shape, int64 -> int64.

    Half of the buckets hold one small distance each. The other buckets hold ranges of distances, whose widths grow
    logarithmically up to `max_distance`. In a bidirectional stack, half of all buckets are for keys after the query.
    Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1.
    """
    buckets = config.num_buckets
    offset = torch.zeros_like(distance)
    if config.bidirectional:
        buckets //= 2
        offset = (distance > 0) * buckets
        steps = distance.abs()
    else:
        steps = (-distance).clamp(min=0)
    exact = buckets // 2
    growth = torch.log(steps.clamp(min=1).float() / exact) / math.log(config.max_distance / exact)
    far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return offset + torch.where(steps < exact, steps, far)


class BucketBias(nn.Module):
    """T5's relative position bias: one table for all layers of a stack.

    weight: [num_buckets, heads], model dtype.
    """

    def __init__(self, config: BucketBiasConfig, num_heads: int) -> None:
        super().__init__()
        self.config = config
        self.weight = parameter(config.num_buckets, num_heads)

    def forward(self, length: int) -> Tensor:
        """Bias of every distance between tokens of a sequence: [heads, 2 * length - 1].

        Distance d has index `d + length - 1`.
        """
        distances = torch.arange(1 - length, length, device=self.weight.device)
        return self.weight[bucket_of_distance(distances, self.config)].T


class LayerBucketBias(nn.Module):
    """UMT5's relative position bias: each layer of a stack has a table. Source: Chung et al. 2023, arXiv:2304.09151."""

    def __init__(self, config: BucketBiasConfig, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(BucketBias(config, num_heads) for _ in range(num_layers))

    def forward(self, length: int) -> Tensor:
        """The biases of all layers by distance: [layers, heads, 2 * length - 1], model dtype.

        Distance d has index `d + length - 1`.
        """
        return torch.stack([layer(length) for layer in self.layers])


class Alibi:
    """ALiBi: attention scores fall in proportion to the distance between query and key, with one slope per head.

    Has no parameters. Source: Press et al. 2022, arXiv:2108.12409.
    """

    def __init__(self, config: AlibiConfig) -> None:
        self._slopes = torch.tensor(config.slopes, device="cpu")

    def __call__(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Bias of every distance between tokens of a sequence: [heads, 2 * length - 1].

        Distance d has index `d + length - 1`.

        dtype, device: dtype and device of the result, which is computed in float32.
        """
        if self._slopes.device != device:
            self._slopes = self._slopes.to(device)
        distances = torch.arange(1 - length, length, device=device)
        return (self._slopes[:, None] * -distances.abs()).to(dtype)


class KeyAlibi:
    """Falcon's ALiBi: a bias proportional to the position of the key. Has no parameters."""

    def __init__(self, config: KeyAlibiConfig) -> None:
        self._slopes, self._scale = torch.tensor(config.slopes, device="cpu").bfloat16(), config.scale

    def __call__(self, length: int, dtype: torch.dtype, device: torch.device) -> KeyBias:
        """Bias of every key position of a sequence: [heads, length], rounded as in the published code.

        dtype, device: dtype and device of the result. The products of slopes and positions are bfloat16 for every
            dtype.
        """
        if self._slopes.device != device:
            self._slopes = self._slopes.to(device)
        lines = self._slopes[:, None] * torch.arange(length, device=device)
        return KeyBias(lines.to(dtype) * self._scale)
