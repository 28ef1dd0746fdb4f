"""Configuration of positions, which act on queries and keys, on scores, or on embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.errors import require

MIN_FACTOR, MAX_FACTOR = 1e-3, 1e5
"""Smallest and largest allowed factor of a scaling. Published models have at most 64."""
MAX_THETA, MAX_ROTATED = 1e12, 1 << 16
"""Largest allowed base, and largest allowed number of rotated dimensions of a head. Published models have 1e11 and
512."""
MAX_SINUSOIDS = 1 << 17
"""Largest allowed number of positions in a table of sines, which is computed while the model is built. Published models
have 16,384."""


def _require_factors(**factors: float) -> None:
    for name, factor in factors.items():
        require(
            MIN_FACTOR <= factor <= MAX_FACTOR, f"rope {name} must be {MIN_FACTOR:g} to {MAX_FACTOR:g}, got {factor:g}"
        )


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595): all positions divided by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        _require_factors(factor=self.factor)


@dataclass(frozen=True)
class Llama3Scaling:
    """Scaling of Llama 3.1: low frequencies (long wavelengths) are divided by `factor`, high frequencies are unchanged.

    Frequencies between the two limits change smoothly. A wavelength is compared with `original_max_positions`, divided
    by `low_freq_factor` and by `high_freq_factor`.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int

    def __post_init__(self) -> None:
        _require_factors(
            factor=self.factor, low_freq_factor=self.low_freq_factor, high_freq_factor=self.high_freq_factor
        )


@dataclass(frozen=True)
class YarnScaling:
    """YaRN scaling of rotary positions (Peng et al. 2023, arXiv:2309.00071).

    Frequencies with fewer than `beta_slow` rotations over the original length are divided by `factor`. Frequencies with
    more than `beta_fast` rotations are unchanged. Dimensions in between are interpolated linearly.
    truncate: whether the limits of the interpolation are rounded to whole dimensions.
    magnitude: factor by which cosines and sines are multiplied.
    """

    factor: float
    original_max_positions: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    magnitude: float

    def __post_init__(self) -> None:
        _require_factors(
            factor=self.factor, beta_fast=self.beta_fast, beta_slow=self.beta_slow, magnitude=self.magnitude
        )


@dataclass(frozen=True)
class DynamicScaling:
    """Dynamic NTK-aware scaling (Peng et al. 2023, arXiv:2309.00071, appendix A.2).

    Texts of up to `original_max_positions` tokens are unchanged. For longer texts the base grows with the length and
    `factor`.
    """

    factor: float
    original_max_positions: int

    def __post_init__(self) -> None:
        _require_factors(factor=self.factor)


@dataclass(frozen=True)
class LongScaling:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): each frequency is divided by a separate factor.

    short_factors: for texts of up to `original_max_positions` tokens. long_factors: for longer texts.
    magnitude: factor by which cosines and sines are multiplied.
    restarts: whether a text that grows beyond `original_max_positions` is recomputed from its start (Phi-3). Otherwise
        the keys computed so far are kept.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_positions: int
    magnitude: float
    restarts: bool = False

    def __post_init__(self) -> None:
        for factor in (*self.short_factors, *self.long_factors):
            _require_factors(factor=factor)
        _require_factors(magnitude=self.magnitude)


Scaling = LinearScaling | Llama3Scaling | YarnScaling | DynamicScaling | LongScaling


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    theta: base of the rotation frequencies. dim: number of leading dimensions of each head that rotate.
    pairing: `half`: dimension i rotates with dimension i + dim / 2, as in transformers. `interleaved`: with its
        neighbour, as in the paper.
    turning_pairs: number of leading pairs of dimensions that rotate; the angles of the other pairs are zero (Gemma 4).
        None: all pairs rotate.
    """

    theta: float
    dim: int
    pairing: Literal["half", "interleaved"] = "half"
    scaling: Scaling | None = None
    turning_pairs: int | None = None

    def __post_init__(self) -> None:
        require(self.dim > 0 and self.dim % 2 == 0, f"rope needs an even number of dimensions, got {self.dim}")
        if isinstance(self.scaling, LongScaling):
            lengths = {len(self.scaling.short_factors), len(self.scaling.long_factors)}
            require(lengths == {self.dim // 2}, f"rope scaling needs {self.dim // 2} factors, got {sorted(lengths)}")
        if isinstance(self.scaling, DynamicScaling):
            require(self.dim > 2, f"dynamic rope scaling needs more than 2 dimensions, got {self.dim}")
        if isinstance(self.scaling, YarnScaling):
            require(self.theta > 1, f"rope theta must exceed 1 for yarn scaling, got {self.theta}")
        require(0 < self.theta <= MAX_THETA, f"rope theta must be above 0 and at most {MAX_THETA:g}, got {self.theta}")
        require(self.dim <= MAX_ROTATED, f"rope has at most {MAX_ROTATED:,} dimensions, got {self.dim:,}")
        pairs = self.turning_pairs
        require(pairs is None or 0 < pairs <= self.dim // 2, f"turning_pairs must be 1 to {self.dim // 2}, got {pairs}")

    @property
    def depends_on_length(self) -> bool:
        """Whether the rotation of a token depends on the length of its text, besides its position."""
        if isinstance(self.scaling, LongScaling):
            return self.scaling.short_factors != self.scaling.long_factors
        return isinstance(self.scaling, DynamicScaling)


@dataclass(frozen=True)
class BucketBiasConfig:
    """T5's relative position buckets, added to attention scores (Raffel et al. 2020, arXiv:1910.10683, section 2.1).

    bidirectional: whether keys after the query have separate buckets.
    per_layer: whether each layer has a table (Chung et al. 2023, arXiv:2304.09151); otherwise the stack has one.
    """

    num_buckets: int
    max_distance: int
    bidirectional: bool
    per_layer: bool = False

    def __post_init__(self) -> None:
        exact = self.num_buckets // (4 if self.bidirectional else 2)
        require(exact > 0, f"num_buckets must be at least {4 if self.bidirectional else 2}, got {self.num_buckets}")
        require(
            self.max_distance > exact,
            f"max_distance {self.max_distance} must exceed the {exact} distances with a bucket of their own",
        )


@dataclass(frozen=True)
class AlibiConfig:
    """Score bias that is linear in the distance, `-slope * |key position - query position|`, with one slope per head.

    Source: Press et al. 2022, arXiv:2108.12409.
    """

    slopes: tuple[float, ...]


@dataclass(frozen=True)
class KeyAlibiConfig:
    """Score bias `scale * slope * key position`, which is equivalent to `AlibiConfig` under softmax (Falcon).

    As in the published code, slopes and products are rounded to bfloat16, so neighbouring keys far from the start share
    a bias.
    """

    slopes: tuple[float, ...]
    scale: float


@dataclass(frozen=True)
class LearnedPositions:
    """A table of `num_positions` vectors, which are added to the token embeddings. Position 0 is the first row."""

    num_positions: int


def _require_table(positions: int) -> None:
    require(positions <= MAX_SINUSOIDS, f"a table of sines has at most {MAX_SINUSOIDS:,} positions, got {positions:,}")


@dataclass(frozen=True)
class SinusoidalPositions:
    """Sinusoidal positions, which are added to the token embeddings (Vaswani et al. 2017, arXiv:1706.03762, 3.5).

    pairing: `half`: sines in the first half of the width, cosines in the second. `interleaved`: sines and cosines
        alternate, as in the paper.
    """

    num_positions: int
    pairing: Literal["half", "interleaved"] = "half"

    def __post_init__(self) -> None:
        _require_table(self.num_positions)


@dataclass(frozen=True)
class FairseqSinusoidalPositions:
    """Sinusoidal positions as in fairseq, added to the token embeddings. The first token has position `first`.

    The longest wavelength is 2 pi * 10000 positions. In the paper, the series of wavelengths ends one step earlier.
    Source: published code of Ott et al. 2019, arXiv:1904.01038, after tensor2tensor.
    """

    num_positions: int
    first: int

    def __post_init__(self) -> None:
        _require_table(self.num_positions)
