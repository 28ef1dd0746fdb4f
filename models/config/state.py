"""Configuration of mixers: parts of a layer that read earlier tokens through a state of constant size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.errors import require

CHUNK_TOKENS = 64
"""Length of the chunks in which the tokens of a prompt pass through a mixer, counted from the start of the text."""


@dataclass(frozen=True)
class ShortConvolutionConfig:
    """Gated short convolution: `out(c * conv(b * x))`, where `b, c, x = in(hidden)` (Liquid AI 2025, LFM2).

    channels: width of the convolution.
    kernel_size: number of tokens that the convolution reads: the token itself and the tokens before it.
    bias: whether the convolution and both projections have biases.
    """

    channels: int
    kernel_size: int
    bias: bool = False

    def __post_init__(self) -> None:
        require(self.channels > 0, f"the width of a convolution must be positive, got {self.channels}")
        require(self.kernel_size > 1, f"the kernel size of a convolution must exceed 1, got {self.kernel_size}")

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of the only state tensor, float32: the convolution's inputs for the last `kernel_size - 1` tokens."""
        return ((self.kernel_size - 1, self.channels),)


@dataclass(frozen=True)
class GatedDeltaConfig:
    """Short convolution, then gated delta rule (Yang et al. 2024, arXiv:2412.06464), as in Qwen3-Next.

    num_key_heads, key_head_dim: number and width of query and key heads. A group of value heads shares one of them.
    num_value_heads, value_head_dim: number and width of value heads, which are also the heads of the state.
    kernel_size: number of tokens that the convolution reads.
    norm_eps: epsilon of the gated RMS norm, which normalises each head of the result.
    separate_convolutions: whether the checkpoint stores separate convolutions for queries, keys and values, instead of
        one convolution of all channels. Both compute the same.
    strength: factor of the corrections that a token makes to the state. Above 1, the state may change its sign (Grazzi
        et al. 2024, arXiv:2411.12537).
    """

    num_key_heads: int
    key_head_dim: int
    num_value_heads: int
    value_head_dim: int
    kernel_size: int
    norm_eps: float
    separate_convolutions: bool = False
    strength: float = 1.0

    def __post_init__(self) -> None:
        require(
            0 < self.strength <= 2, f"the strength of corrections must be above 0 and at most 2, got {self.strength}"
        )
        require(self.num_key_heads > 0 and self.num_value_heads > 0, "a gated delta rule needs at least one head")
        require(
            self.num_value_heads % self.num_key_heads == 0,
            f"num_value_heads {self.num_value_heads} is not a multiple of num_key_heads {self.num_key_heads}",
        )
        require(self.key_head_dim > 0 and self.value_head_dim > 0, "the heads of a gated delta rule need a dimension")
        require(self.kernel_size > 1, f"the kernel size of a convolution must exceed 1, got {self.kernel_size}")
        require(self.norm_eps > 0, f"norm eps must be positive, got {self.norm_eps}")

    @property
    def key_width(self) -> int:
        """Width of the queries of all heads together, which is also the width of the keys."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Width of the values of all heads together."""
        return self.num_value_heads * self.value_head_dim

    @property
    def channels(self) -> int:
        """Number of channels of the convolution, which reads queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the two float32 tensors that hold the state of one text.

        The first tensor holds the last `kernel_size - 1` inputs of the convolution, the second a matrix per value head.
        """
        return (
            (self.kernel_size - 1, self.channels),
            (self.num_value_heads, self.key_head_dim, self.value_head_dim),
        )


@dataclass(frozen=True)
class StateSpaceMultipliers:
    """Constant factors in a state-space layer.

    input, output: factors of the layer's input and of its result.
    gate, values, keys, queries, time_step: factors of the parts of the input projection's result.
    """

    input: float = 1.0
    gate: float = 1.0
    values: float = 1.0
    keys: float = 1.0
    queries: float = 1.0
    time_step: float = 1.0
    output: float = 1.0


@dataclass(frozen=True)
class StateSpaceConfig:
    """Short convolution, then selective state space (Dao and Gu 2024, arXiv:2405.21060: Mamba-2).

    num_heads, head_dim: number and width of value heads, which are also the heads of the state.
    state_size: width of a key head (B) and of a query head (C).
    num_groups: number of key and query heads. A group of value heads shares one of them.
    kernel_size: number of tokens that the convolution reads.
    convolution_bias, input_bias, output_bias: whether the convolution and the projections have biases.
    norm_eps: epsilon of the RMS norm of the result; None for no norm, only the gate.
    norm_groups: number of parts of the result that are normalised separately.
    gate: whether the gate is applied before the norm or after it.
    chunk_time_steps: smallest and largest time step of a prompt token. As in transformers, these limits do not apply to
        generated tokens.
    multipliers: constant factors (Falcon-H1); None for no factors.
    """

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    kernel_size: int
    norm_eps: float | None
    norm_groups: int = 1
    gate: Literal["before", "after"] = "before"
    convolution_bias: bool = True
    input_bias: bool = False
    output_bias: bool = False
    chunk_time_steps: tuple[float, float] = (0.0, float("inf"))
    multipliers: StateSpaceMultipliers | None = None

    def __post_init__(self) -> None:
        require(self.num_heads > 0 and self.num_groups > 0, "a state space needs at least one head and one group")
        require(
            self.num_heads % self.num_groups == 0,
            f"num_heads {self.num_heads} is not a multiple of num_groups {self.num_groups}",
        )
        require(self.head_dim > 0 and self.state_size > 0, "the heads of a state space need a dimension and a state")
        require(self.kernel_size > 1, f"the kernel size of a convolution must exceed 1, got {self.kernel_size}")
        require(self.norm_eps is None or self.norm_eps > 0, f"norm eps must be positive, got {self.norm_eps}")
        require(
            self.norm_groups > 0 and self.width % self.norm_groups == 0,
            f"the width {self.width} of a state space is not a multiple of its norm's groups {self.norm_groups}",
        )

    @property
    def width(self) -> int:
        """Width of the values of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def channels(self) -> int:
        """Number of channels of the convolution, which reads values, keys and queries."""
        return self.width + 2 * self.num_groups * self.state_size

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the two float32 tensors that hold the state of one text.

        The first tensor holds the last `kernel_size - 1` inputs of the convolution, the second a matrix per head.
        """
        return (self.kernel_size - 1, self.channels), (self.num_heads, self.head_dim, self.state_size)


MixerConfig = ShortConvolutionConfig | GatedDeltaConfig | StateSpaceConfig
