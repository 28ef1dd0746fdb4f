"""Selective state space behind a short convolution (Mamba-2), the mixer of Granite 4, Nemotron-H and Falcon-H1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends import interface as ops
from models.config import CHUNK_TOKENS, StateSpaceConfig
from models.layers.activations import activate, by_rows
from models.layers.causal_convolution import CausalConvolution
from models.layers.decay import segment_sums
from models.layers.gated_norm import GatedNorm
from models.layers.linear import Linear, parameter
from models.layers.mixer import Mixer, Projections


class StateSpace(Mixer):
    """One matrix S per head, which decays and to which each token adds.

    `S = exp(dt a) S + dt x b^T; result = S c + d x`, with `a = -exp(log_decay)` and
    `dt = softplus(time_step + time_step_bias)`. The paper's B and C are the keys and queries of attention.

    input: projection to the gate, the values x, keys b, queries c and the time step of each head.
    skip: the factor d of each head.
    Source: Dao and Gu 2024, arXiv:2405.21060; the chunked form is in section 6.
    """

    config: StateSpaceConfig

    def __init__(self, config: StateSpaceConfig, hidden_size: int) -> None:
        super().__init__()
        self.config, self.width = config, config.width
        self._parts = [config.width, config.channels, config.num_heads]
        self.input = Linear(hidden_size, sum(self._parts), config.input_bias)
        self.convolution = CausalConvolution(config.channels, config.kernel_size, config.convolution_bias)
        self.log_decay = parameter(config.num_heads)
        self.time_step_bias = parameter(config.num_heads)
        self.skip = parameter(config.num_heads)
        self.norm = GatedNorm(config.width, config.norm_eps, config.norm_groups, config.gate)
        self.output = Linear(config.width, hidden_size, config.output_bias)

    def project(self, hidden: Tensor) -> Projections:
        gate, convolved, time_step = self.input(hidden).split(self._parts, dim=-1)
        return gate, convolved, time_step

    def chunked(self, projections: Projections, state: Sequence[Tensor]) -> Tensor:
        window, memory = state
        convolved = activate(self.convolution.chunked(projections[1].float(), window), "silu")
        time_step = self._time_step(projections).clamp(*self.config.chunk_time_steps)
        decay, results = -self.log_decay.float().exp(), []
        for part, steps in zip(convolved.split(CHUNK_TOKENS), time_step.split(CHUNK_TOKENS), strict=True):
            values, keys, queries = self._heads(part)
            mixed = _chunk(values * steps[..., None], keys, queries, steps * decay, memory)
            results.append(mixed + self._skipped(values))
        return torch.cat(results).flatten(1)

    def step(self, projections: Projections, states: Sequence[Tensor], slots: Tensor) -> Tensor:
        convolved = activate(self.convolution.step(projections[1].float(), states[0], slots), "silu")
        values, keys, queries = self._heads(convolved)
        shared = self.config.num_heads // self.config.num_groups
        keys, queries = (one.repeat_interleave(shared, dim=1)[:, :, None] for one in (keys, queries))
        time_step = self._time_step(projections)
        decay = by_rows(torch.exp, -self.log_decay.float().exp() * time_step)
        memory = states[1][slots] * decay[..., None, None] + (values * time_step[..., None])[..., None] * keys
        states[1][slots] = memory
        return ((memory * queries).sum(-1) + self._skipped(values)).flatten(1)

    def finish(self, mixed: Tensor, projections: Projections) -> Tensor:
        output: Tensor = self.output(self.norm(mixed, projections[0]))
        return output

    def pack(self, packer: ops.LinearPacker, gate_packer: ops.LinearPacker) -> None:
        self.input.pack(packer)
        self.output.pack(packer)

    def _heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values, [rows, heads, head_dim], and keys and queries, [rows, groups, state_size]."""
        config = self.config
        key_width = config.num_groups * config.state_size
        values, keys, queries = convolved.split([config.width, key_width, key_width], dim=-1)
        return (
            values.unflatten(-1, (config.num_heads, -1)),
            keys.unflatten(-1, (config.num_groups, -1)),
            queries.unflatten(-1, (config.num_groups, -1)),
        )

    def _time_step(self, projections: Projections) -> Tensor:
        """Time step of each token and head: [rows, heads], float32."""
        return by_rows(F.softplus, projections[2].float() + self.time_step_bias.float())

    def _skipped(self, values: Tensor) -> Tensor:
        return values * self.skip.float()[:, None]


def _chunk(values: Tensor, keys: Tensor, queries: Tensor, log_decay: Tensor, memory: Tensor) -> Tensor:
    """Results of one chunk, and the memory after it.

    values: [tokens, heads, head_dim], times the time step. keys, queries: [tokens, groups, state_size].
    log_decay: [tokens, heads].
    memory: [heads, head_dim, state_size], updated in place.
    Returns [tokens, heads, head_dim].
    """
    shared = values.shape[1] // keys.shape[1]
    values, log_decay = values.transpose(0, 1), log_decay.T
    keys, queries = keys.transpose(0, 1), queries.transpose(0, 1)
    between, from_start = segment_sums(log_decay).exp(), log_decay.cumsum(-1).exp()[..., None]
    scores = (queries @ keys.transpose(1, 2)).repeat_interleave(shared, dim=0) * between
    keys, queries = (one.repeat_interleave(shared, dim=0) for one in (keys, queries))
    result = scores @ values + (queries * from_start) @ memory.transpose(1, 2)
    to_end = between[:, -1, :, None]
    memory.mul_(from_start[:, -1:]).add_(values.transpose(1, 2) @ (keys * to_end))
    return result.transpose(0, 1)
