"""Types for operands that consist of several parts, such as rotation angles or the parameters of a mixer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class RotaryAngles(Protocol):
    """Rotation angles of a step's tokens.

    cos_table, sin_table: [positions, 1, dim / 2], float32.
    positions: [tokens], int64, row of each token in the tables; None where token i has row i.
    cos, sin: [tokens, 1, dim / 2], float32: the table rows of the tokens.
    """

    @property
    def cos_table(self) -> Tensor: ...
    @property
    def sin_table(self) -> Tensor: ...
    @property
    def positions(self) -> Tensor | None: ...
    @property
    def cos(self) -> Tensor: ...
    @property
    def sin(self) -> Tensor: ...


class CacheSlots(NamedTuple):
    """Where a layer stores the keys and values of a step.

    keys, values: [blocks, block_size, kv_heads, head_dim], the keys and the values of a cache.
    slots: [tokens], int64: slot of each token, `block * block_size + offset`.
    """

    keys: Tensor
    values: Tensor
    slots: Tensor


class XieluShape(NamedTuple):
    """Parameters of the activation xIELU.

    It is `alpha_p * x ** 2 + beta * x` above zero, else `alpha_n * (expm1(min(x, eps)) - x) + beta * x`.
    """

    alpha_p: float
    alpha_n: float
    beta: float
    eps: float


class ConvolutionNumbers(NamedTuple):
    """Parameters of a short causal convolution with separate weights for each channel.

    weights: [taps, channels], float32. The first tap is multiplied by the earliest token. bias: [channels], float32, or
        None.
    """

    weights: Tensor
    bias: Tensor | None


class DeltaNumbers(NamedTuple):
    """Parameters of a gated delta rule.

    decay_bias, decay_factors: [heads], float32. The logarithm of the decay is
        `softplus(decay + decay_bias) * decay_factors`.
    key_heads: number of heads of queries and keys.
    strength: factor of the corrections to the memory. The compiled kernel supports 1 only.
    """

    decay_bias: Tensor
    decay_factors: Tensor
    key_heads: int
    strength: float = 1.0


class SpaceNumbers(NamedTuple):
    """Parameters of a selective state space.

    time_step_bias, decay_factors: [heads], float32: bias of the time steps, and factor from time step to log decay.
    skip: [heads], float32: factor with which the input is added to the output.
    groups: number of heads of keys and queries.
    time_scale: factor of the time steps before their bias is added.
    chunk_time_steps: smallest and largest time step where tokens are computed in chunks.
    """

    time_step_bias: Tensor
    decay_factors: Tensor
    skip: Tensor
    groups: int
    time_scale: float
    chunk_time_steps: tuple[float, float]


class GatedNormShape(NamedTuple):
    """Settings of `Backend.gated_norm`, an RMS norm in groups with a gate.

    groups: number of groups of features, which are normalised separately.
    is_shared: whether all groups share one weight.
    gate_first: whether the gate is applied before the norm; otherwise after it.
    gate_scale: the gate is `silu(gate_scale * gate)`.
    """

    groups: int
    eps: float
    is_shared: bool
    gate_first: bool
    gate_scale: float
