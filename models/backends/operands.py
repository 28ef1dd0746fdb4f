"""Operands of operations that are more than a tensor: rotation angles, and parameters that belong together."""

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

    keys, values: [blocks, block_size, kv_heads, head_dim], the sides of a cache.
    slots: [tokens], int64: `block * block_size + offset`.
    """

    keys: Tensor
    values: Tensor
    slots: Tensor


class XieluShape(NamedTuple):
    """Parameters of one activation, see `Backend.xielu`."""

    alpha_p: float
    alpha_n: float
    beta: float
    eps: float


class ConvolutionNumbers(NamedTuple):
    """Parameters of a short causal convolution with separate weights for each channel.

    weights: [taps, channels], float32. The first tap belongs to the most distant token. bias: [channels], float32, or
        None.
    """

    weights: Tensor
    bias: Tensor | None


class DeltaNumbers(NamedTuple):
    """Parameters of a gated delta rule.

    decay_bias, decay_factors: [heads], float32.
    key_heads: heads of the keys.
    strength: factor of the strength of corrections. The compiled kernel supports 1 only.
    """

    decay_bias: Tensor
    decay_factors: Tensor
    key_heads: int
    strength: float = 1.0


class SpaceNumbers(NamedTuple):
    """Parameters of a selective state space.

    time_step_bias, decay_factors, skip: [heads], float32.
    groups: heads of keys and queries.
    time_scale: factor of the time steps before their bias.
    chunk_time_steps: limits of the time steps in `Backend.state_space_chunks`.
    """

    time_step_bias: Tensor
    decay_factors: Tensor
    skip: Tensor
    groups: int
    time_scale: float
    chunk_time_steps: tuple[float, float]


class GatedNormShape(NamedTuple):
    """See `Backend.gated_norm`."""

    groups: int
    eps: float
    is_shared: bool
    gate_first: bool
    gate_scale: float
