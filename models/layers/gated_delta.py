"""Short convolution and gated delta rule, the mixer of Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from models.backends.choice import backend
from models.backends.linear_weights import LinearPacker
from models.backends.operands import DeltaNumbers
from models.config import GatedDeltaConfig
from models.layers.causal_convolution import CausalConvolution, JoinedConvolution
from models.layers.gated_norm import GatedNorm
from models.layers.linear import Linear, parameter
from models.layers.mixer import Mixer, Projections

_SCALES = (1.0, 1.0, 1.0)
"""Factors of queries, keys and values before the convolution."""


class GatedDelta(Mixer):
    """Mixer with one matrix S per head. It maps keys to values, and each token corrects it.

    `S = exp(g) S; S = S + k (beta (v - S^T k))^T; result = S^T q`, with keys of unit length, queries of length
    `1 / sqrt(key_head_dim)`, `g = -exp(log_decay) softplus(decay(hidden) + decay_bias)` and
    `beta = strength * sigmoid(beta(hidden))`.

    query, key, value: projections whose results pass through the convolution.
    gate: projection to the gate of the result.
    beta, decay: projections to one number per head; never quantised, because they are small.
    norm: norm of the result with the gate; all heads share its weight.
    Source: Yang et al. 2024, arXiv:2412.06464.
    """

    def __init__(self, config: GatedDeltaConfig, hidden_size: int) -> None:
        super().__init__()
        self.config, self.width, self._key_heads = config, config.value_width, config.num_key_heads
        self._strength = config.strength
        self.query = Linear(hidden_size, config.key_width, bias=False)
        self.key = Linear(hidden_size, config.key_width, bias=False)
        self.value = Linear(hidden_size, config.value_width, bias=False)
        self.gate = Linear(hidden_size, config.value_width, bias=False)
        self.beta = Linear(hidden_size, config.num_value_heads, bias=False)
        self.decay = Linear(hidden_size, config.num_value_heads, bias=False)
        self.convolution = _make_convolution(config)
        self.log_decay = parameter(config.num_value_heads)
        self.decay_bias = parameter(config.num_value_heads)
        self.norm = GatedNorm(config.value_width, config.norm_eps, config.num_value_heads, "after", is_shared=True)
        self.output = Linear(config.value_width, hidden_size, bias=False)
        self._numbers: DeltaNumbers | None = None

    @property
    def numbers(self) -> DeltaNumbers:
        """The parameters of the delta rule in the form that backend operations take. Computed at the first use."""
        if self._numbers is None:
            factors = -self.log_decay.float().exp()
            self._numbers = DeltaNumbers(self.decay_bias.float(), factors, self._key_heads, self._strength)
        return self._numbers

    def project(self, hidden: Tensor) -> Projections:
        linears = (self.query, self.key, self.value, self.gate, self.beta, self.decay)
        return tuple(linear(hidden) for linear in linears)

    def chunked(self, projections: Projections, state: Sequence[Tensor]) -> Tensor:
        *parts, _, beta, decay = projections
        inputs = backend(parts[0]).convolution_chunk(parts, _SCALES, self.convolution.numbers, state[0])
        return backend(beta).gated_delta_chunks(inputs, beta, decay, self.numbers, state[1])

    def step(self, projections: Projections, states: Sequence[Tensor], slots: Tensor) -> Tensor:
        *parts, _, beta, decay = projections
        inputs = backend(parts[0]).convolution_step(parts, _SCALES, self.convolution.numbers, states[0], slots)
        return backend(beta).gated_delta_step(inputs, beta, decay, self.numbers, states[1], slots)

    def finish(self, mixed: Tensor, projections: Projections) -> Tensor:
        output: Tensor = self.output(self.norm(mixed, projections[3]))
        return output

    def pack(self, packer: LinearPacker, gate_packer: LinearPacker) -> None:
        for linear in (self.query, self.key, self.value, self.gate, self.output):
            linear.pack(packer)
        for linear in (self.beta, self.decay):
            linear.pack(gate_packer)


def _make_convolution(config: GatedDeltaConfig) -> CausalConvolution | JoinedConvolution:
    if not config.separate_convolutions:
        return CausalConvolution(config.channels, config.kernel_size, bias=False)
    channels = {"query": config.key_width, "key": config.key_width, "value": config.value_width}
    return JoinedConvolution(channels, config.kernel_size)
