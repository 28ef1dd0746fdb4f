"""Short convolution and selective state space (Mamba-2), the mixer of Granite 4, Nemotron-H and Falcon-H1."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from models.backends.choice import backend
from models.backends.linear_weights import LinearPacker
from models.backends.operands import SpaceNumbers
from models.config import StateSpaceConfig, StateSpaceMultipliers
from models.layers.causal_convolution import CausalConvolution
from models.layers.gated_norm import GatedNorm
from models.layers.linear import Linear, parameter
from models.layers.mixer import Mixer, Projections


class StateSpace(Mixer):
    """Mixer with one matrix S per head. The matrix decays with each token, and each token adds to it.

    `S = exp(dt a) S + dt x b^T; result = S c + d x`, with `a = -exp(log_decay)` and
    `dt = softplus(time_step + time_step_bias)`. The paper's B and C are the keys and queries of attention. If the
    configuration has multipliers, they scale the layer's input, the parts of the input projection, and the result.

    input: projection to the gate, the values x, keys b, queries c and the time step of each head.
    skip: [heads], the factor d of each head.
    Source: Dao and Gu 2024, arXiv:2405.21060.
    """

    def __init__(self, config: StateSpaceConfig, hidden_size: int) -> None:
        super().__init__()
        factors = config.multipliers or StateSpaceMultipliers()
        self.config, self.width = config, config.width
        self._groups, self._limits = config.num_groups, config.chunk_time_steps
        self._factors, self._scales = factors, (factors.values, factors.keys, factors.queries)
        key_width = config.num_groups * config.state_size
        self._widths = (config.width, config.width, key_width, key_width, config.num_heads)
        self.input = Linear(hidden_size, sum(self._widths), config.input_bias)
        self.convolution = CausalConvolution(config.channels, config.kernel_size, config.convolution_bias)
        self.log_decay = parameter(config.num_heads)
        self.time_step_bias = parameter(config.num_heads)
        self.skip = parameter(config.num_heads)
        self.norm = GatedNorm(config.width, config.norm_eps, config.norm_groups, config.gate, gate_scale=factors.gate)
        self.output = Linear(config.width, hidden_size, config.output_bias)
        self._numbers: SpaceNumbers | None = None

    @property
    def numbers(self) -> SpaceNumbers:
        """The parameters of the state space in the form that backend operations take. Computed at the first use."""
        if self._numbers is None:
            factors = -self.log_decay.float().exp()
            self._numbers = SpaceNumbers(
                self.time_step_bias.float(),
                factors,
                self.skip.float(),
                self._groups,
                self._factors.time_step,
                self._limits,
            )
        return self._numbers

    def project(self, hidden: Tensor) -> Projections:
        if self._factors.input != 1.0:
            hidden = hidden * self._factors.input
        product, start = self.input(hidden), 0
        parts: list[Tensor] = []
        for width in self._widths:
            parts.append(product[:, start : start + width])
            start += width
        return tuple(parts)

    def chunked(self, projections: Projections, state: Sequence[Tensor]) -> Tensor:
        _, *parts, time_step = projections
        inputs = backend(parts[0]).convolution_chunk(parts, self._scales, self.convolution.numbers, state[0])
        return backend(time_step).state_space_chunks(inputs, time_step, self.numbers, state[1])

    def step(self, projections: Projections, states: Sequence[Tensor], slots: Tensor) -> Tensor:
        _, *parts, time_step = projections
        inputs = backend(parts[0]).convolution_step(parts, self._scales, self.convolution.numbers, states[0], slots)
        return backend(time_step).state_space_step(inputs, time_step, self.numbers, states[1], slots)

    def finish(self, mixed: Tensor, projections: Projections) -> Tensor:
        output: Tensor = self.output(self.norm(mixed, projections[0]))
        return output if self._factors.output == 1.0 else output * self._factors.output

    def pack(self, packer: LinearPacker, gate_packer: LinearPacker) -> None:
        self.input.pack(packer)
        self.output.pack(packer)
