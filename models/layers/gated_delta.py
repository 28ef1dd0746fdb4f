"""Gated delta rule behind a short convolution, the mixer of Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends import interface as ops
from models.config import CHUNK_TOKENS, GatedDeltaConfig
from models.layers.activations import activate, by_rows
from models.layers.causal_convolution import CausalConvolution
from models.layers.decay import segment_sums
from models.layers.gated_norm import GatedNorm
from models.layers.linear import Linear, parameter
from models.layers.mixer import Mixer, Projections

_NORM_EPS = 1e-6
"""Epsilon of the length of a query or key."""


class GatedDelta(Mixer):
    """One matrix S per head, which maps keys to values and is corrected by each token.

    `S = exp(g) S; S = S + k (beta (v - S^T k))^T; result = S^T q`, with queries and keys of unit length and
    `g = -exp(log_decay) softplus(decay(hidden) + decay_bias)`, `beta = sigmoid(beta(hidden))`.

    query, key, value: projections whose results pass through the convolution. gate: projection to the result's gate.
    beta, decay: projections to one number per head; never quantised, because they are small.
    norm: one weight for all heads.
    Source: Yang et al. 2024, arXiv:2412.06464; the chunked form is in section 3.3.
    """

    config: GatedDeltaConfig

    def __init__(self, config: GatedDeltaConfig, hidden_size: int) -> None:
        super().__init__()
        self.config, self.width = config, config.value_width
        self.query = Linear(hidden_size, config.key_width, bias=False)
        self.key = Linear(hidden_size, config.key_width, bias=False)
        self.value = Linear(hidden_size, config.value_width, bias=False)
        self.gate = Linear(hidden_size, config.value_width, bias=False)
        self.beta = Linear(hidden_size, config.num_value_heads, bias=False)
        self.decay = Linear(hidden_size, config.num_value_heads, bias=False)
        self.convolution = CausalConvolution(config.channels, config.kernel_size, bias=False)
        self.log_decay = parameter(config.num_value_heads)
        self.decay_bias = parameter(config.num_value_heads)
        self.norm = GatedNorm(config.value_width, config.norm_eps, config.num_value_heads, "after", shared=True)
        self.output = Linear(config.value_width, hidden_size, bias=False)

    def project(self, hidden: Tensor) -> Projections:
        inputs = torch.cat([linear(hidden) for linear in (self.query, self.key, self.value)], dim=-1)
        return inputs, self.gate(hidden), self.beta(hidden), self.decay(hidden)

    def chunked(self, projections: Projections, state: Sequence[Tensor]) -> Tensor:
        window, memory = state
        convolved = activate(self.convolution.chunked(projections[0].float(), window), "silu")
        parts = (*self._heads(convolved), *self._gates(projections))
        results = []
        for query, key, value, beta, log_decay in zip(*(part.split(CHUNK_TOKENS) for part in parts), strict=True):
            results.append(_chunk(query, key, value, beta, log_decay, memory))
        return torch.cat(results)

    def step(self, projections: Projections, states: Sequence[Tensor], slots: Tensor) -> Tensor:
        convolved = activate(self.convolution.step(projections[0].float(), states[0], slots), "silu")
        query, key, value = self._heads(convolved)
        beta, log_decay = self._gates(projections)
        memory = states[1][slots] * by_rows(torch.exp, log_decay)[..., None, None]
        correction = (value - (memory * key[..., None]).sum(-2)) * beta[..., None]
        memory = memory + key[..., None] * correction[..., None, :]
        states[1][slots] = memory
        return (memory * query[..., None]).sum(-2).flatten(1)

    def finish(self, mixed: Tensor, projections: Projections) -> Tensor:
        output: Tensor = self.output(self.norm(mixed, projections[1]))
        return output

    def pack(self, packer: ops.LinearPacker, gate_packer: ops.LinearPacker) -> None:
        for linear in (self.query, self.key, self.value, self.gate, self.output):
            linear.pack(packer)
        for linear in (self.beta, self.decay):
            linear.pack(gate_packer)

    def _heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys of unit length, [rows, heads, key_head_dim], and values, [rows, heads, value_head_dim]."""
        config = self.config
        query, key, value = convolved.split([config.key_width, config.key_width, config.value_width], dim=-1)
        shared = config.num_value_heads // config.num_key_heads
        query, key = (
            _unit_length(one.unflatten(-1, (config.num_key_heads, -1))).repeat_interleave(shared, dim=1)
            for one in (query, key)
        )
        return query / config.key_head_dim**0.5, key, value.unflatten(-1, (config.num_value_heads, -1))

    def _gates(self, projections: Projections) -> tuple[Tensor, Tensor]:
        """Strength of the correction and logarithm of the decay, both [rows, heads], float32."""
        beta = by_rows(torch.sigmoid, projections[2].float())
        time_step = by_rows(F.softplus, projections[3].float() + self.decay_bias.float())
        return beta, -self.log_decay.float().exp() * time_step


def _unit_length(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _NORM_EPS)


def _chunk(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, log_decay: Tensor, memory: Tensor) -> Tensor:
    """Results of one chunk, and the memory after it.

    The corrections of a chunk depend on each other: each one reads the corrections before it. They solve a triangular
    system of equations.

    query, key: [tokens, heads, key_head_dim]. value: [tokens, heads, value_head_dim].
    beta, log_decay: [tokens, heads].
    memory: [heads, key_head_dim, value_head_dim], updated in place.
    Returns [tokens, heads * value_head_dim].
    """
    query, key, value = (one.transpose(0, 1) for one in (query, key, value))
    beta, log_decay = beta.T[..., None], log_decay.T
    sums = segment_sums(log_decay)
    between, from_start = sums.exp(), log_decay.cumsum(-1).exp()[..., None]
    to_end = between[:, -1, :, None]
    strengthened = key * beta
    system = (strengthened @ key.transpose(1, 2)) * between
    known = torch.cat([value * beta, strengthened * from_start], dim=-1)
    solved = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    new_values, read_keys = solved.split([value.shape[-1], key.shape[-1]], dim=-1)
    corrections = new_values - read_keys @ memory
    result = (query * from_start) @ memory + ((query @ key.transpose(1, 2)) * between) @ corrections
    memory.mul_(from_start[:, -1:]).add_((key * to_end).transpose(1, 2) @ corrections)
    return result.transpose(0, 1).flatten(1)
