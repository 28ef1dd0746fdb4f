"""Positions, named by where they act: on queries and keys, on scores, on embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.errors import require


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595): all positions divided by `factor`."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, smooth in between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): waves that turn less than `beta_slow` times over the original length
    divided by `factor`, those above `beta_fast` turns kept, a ramp over dimensions in between (whole ones when
    `truncate`); cosines and sines times `magnitude`."""

    factor: float
    original_max_positions: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    magnitude: float

    def __post_init__(self) -> None:
        require(self.factor > 0, f"rope factor must be greater than zero, got {self.factor}")
        require(self.beta_fast > 0 and self.beta_slow > 0, "rope beta_fast and beta_slow must be greater than zero")


@dataclass(frozen=True)
class DynamicScaling:
    """NTK-aware scaling that grows with the text (Peng et al. 2023, arXiv:2309.00071, appendix A.2): nothing changes up
    to `original_max_positions`; beyond them the base grows with the length, as if scaled by `factor` all along."""

    factor: float
    original_max_positions: int


@dataclass(frozen=True)
class LongScaling:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): each wavelength times a factor of its own, of `short_factors` in
    texts up to `original_max_positions`, of `long_factors` in longer ones; cosines and sines times `magnitude`.

    restarts: a text that grows longer is computed anew from its start (Phi-3); else its first keys stay as they are.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_positions: int
    magnitude: float
    restarts: bool = False


Scaling = LinearScaling | Llama3Scaling | YarnScaling | DynamicScaling | LongScaling


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    `dim` is how many leading dimensions of each head rotate; `pairing` says whether dimension i turns with i + dim/2
    (`half`, as Hugging Face stores it) or with i + 1 (`interleaved`, as the paper has it).
    """

    theta: float
    dim: int
    pairing: Literal["half", "interleaved"] = "half"
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        require(self.dim > 0 and self.dim % 2 == 0, f"rope needs an even number of dimensions, got {self.dim}")
        if isinstance(self.scaling, LongScaling):
            lengths = {len(self.scaling.short_factors), len(self.scaling.long_factors)}
            require(lengths == {self.dim // 2}, f"rope needs {self.dim // 2} factors")
        if isinstance(self.scaling, DynamicScaling):
            require(self.dim > 2, "rope needs more than two dimensions to grow with the text")
        if isinstance(self.scaling, YarnScaling):
            require(self.theta > 1, f"rope theta must exceed 1 to be scaled, got {self.theta}")
        require(self.theta > 0, f"rope theta must be positive, got {self.theta}")

    @property
    def depends_on_length(self) -> bool:
        """Whether a token is rotated by more than its position: by the length that its text had when it was read."""
        return isinstance(self.scaling, DynamicScaling | LongScaling)


@dataclass(frozen=True)
class BucketBiasConfig:
    """T5's relative position buckets, added to attention scores (Raffel et al. 2020, arXiv:1910.10683, section 2.1).

    One table for all layers of a stack, or with `per_layer` one for each (Chung et al. 2023, arXiv:2304.09151).
    """

    num_buckets: int
    max_distance: int
    bidirectional: bool
    per_layer: bool = False

    def __post_init__(self) -> None:
        exact = self.num_buckets // (4 if self.bidirectional else 2)
        require(exact > 0, f"{self.num_buckets} position buckets are too few")
        require(
            self.max_distance > exact,
            f"max_distance {self.max_distance} must exceed the {exact} distances with a bucket of their own",
        )


@dataclass(frozen=True)
class AlibiConfig:
    """A straight line for each head, added to its scores: `slope * (key position - query position)` (Press et al. 2022,
    arXiv:2108.12409)."""

    slopes: tuple[float, ...]


@dataclass(frozen=True)
class KeyAlibiConfig:
    """The same line by the key's position alone, `scale * slope * key position`, which softmax cannot tell from it; but
    slopes and products are bfloat16, so that far keys share a bias (Falcon, by its published code)."""

    slopes: tuple[float, ...]
    scale: float


@dataclass(frozen=True)
class LearnedPositions:
    """A table of `num_positions` vectors added to the token embeddings; position 0 is its first row."""

    num_positions: int


@dataclass(frozen=True)
class SinusoidalPositions:
    """Vaswani et al. 2017, arXiv:1706.03762, section 3.5; sines in the first half of the width and cosines after, or
    the two by turns, as the paper has it."""

    num_positions: int
    pairing: Literal["half", "interleaved"] = "half"


@dataclass(frozen=True)
class FairseqSinusoidalPositions:
    """The same with waves up to a length of 2 pi * 10000 positions, where the paper's stop one step short of it, and
    numbered from `first` (Ott et al. 2019, arXiv:1904.01038, by its published code, after tensor2tensor)."""

    num_positions: int
    first: int
