"""Mixers over consecutive tokens of one text. The text is divided into chunks, whose tokens are computed together.

A chunk has `CHUNK_TOKENS` tokens, counted from the first token given; the last chunk may be shorter. Chunks are
computed one after the other. A separate call for each chunk therefore gives the same bits as one call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.backends.operands import ConvolutionNumbers, DeltaNumbers, SpaceNumbers
from models.backends.torch.activations import activate
from models.backends.torch.mixers import delta_gates, delta_heads, space_heads, time_steps, weighted_sum
from models.config import CHUNK_TOKENS


class TorchMixerChunks:
    """Mixer operations over consecutive tokens of one text, in plain torch.

    They update the state of the text in place.
    """

    def convolution_chunk(
        self, parts: Sequence[Tensor], scales: Sequence[float], convolution: ConvolutionNumbers, window: Tensor
    ) -> Tensor:
        """Convolve consecutive tokens of one text and apply SiLU.

        parts: [tokens, features] each, model dtype, with all channels in order. scales: factor of each part.

        window: [taps - 1, channels], the earlier inputs, updated in place.
        """
        x = torch.cat([part.float() * scale for part, scale in zip(parts, scales, strict=True)], dim=-1)
        return activate(_convolve(x, convolution, window), "silu")

    def gated_convolution_chunk(
        self, x: Tensor, gate: Tensor, multiplier: Tensor, convolution: ConvolutionNumbers, window: Tensor
    ) -> Tensor:
        """Convolve `x * gate` over consecutive tokens of one text.

        x, gate, multiplier: [tokens, channels], model dtype. The result is multiplied by `multiplier`.

        window: [taps - 1, channels], the earlier inputs, updated in place.
        """
        return _convolve((x * gate).float(), convolution, window).to(x.dtype) * multiplier

    def gated_delta_chunks(
        self, inputs: Tensor, beta: Tensor, decay: Tensor, numbers: DeltaNumbers, memory: Tensor
    ) -> Tensor:
        """Gated delta rule over consecutive tokens of one text.

        inputs: [tokens, features], float32: the queries, keys and values of a token, concatenated.
        beta, decay: [tokens, heads], model dtype, before sigmoid and softplus.

        memory: [heads, key_dim, value_dim], updated in place.
        Source: Yang et al. 2024, arXiv:2412.06464, section 3.3.
        """
        heads, key_dim, _ = memory.shape
        query, key, value = delta_heads(inputs, heads, numbers.key_heads, key_dim)
        strength, log_decay = delta_gates(beta, decay, numbers)
        results = []
        for start in range(0, len(inputs), CHUNK_TOKENS):
            span = slice(start, start + CHUNK_TOKENS)
            results.append(_delta_chunk(query[span], key[span], value[span], strength[span], log_decay[span], memory))
        return torch.cat(results).to(beta.dtype)

    def state_space_chunks(self, inputs: Tensor, time_step: Tensor, numbers: SpaceNumbers, memory: Tensor) -> Tensor:
        """Selective state space over consecutive tokens of one text.

        inputs: [tokens, features], float32: the values, keys and queries of a token, concatenated.
        time_step: [tokens, heads], model dtype, before softplus.

        Time steps are limited to `numbers.chunk_time_steps`.
        memory: [heads, head_dim, state_size], updated in place.
        Source: Dao and Gu 2024, arXiv:2405.21060, section 6.
        """
        heads, head_dim, _ = memory.shape
        steps, results = time_steps(time_step, numbers).clamp(*numbers.chunk_time_steps), []
        for part, step in zip(torch.split(inputs, CHUNK_TOKENS), torch.split(steps, CHUNK_TOKENS), strict=True):
            values, keys, queries = space_heads(part, heads, head_dim, numbers.groups)
            mixed = _space_chunk(values * step[..., None], keys, queries, step * numbers.decay_factors, memory)
            results.append(mixed + values * numbers.skip[:, None])
        return torch.cat(results).flatten(1).to(time_step.dtype)


def _convolve(x: Tensor, convolution: ConvolutionNumbers, window: Tensor) -> Tensor:
    inputs = torch.cat([window, x])
    window.copy_(inputs[len(x) :])
    return weighted_sum([inputs[tap : tap + len(x)] for tap in range(len(convolution.weights))], convolution)


def _delta_chunk(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor, memory: Tensor
) -> Tensor:
    """Gated delta rule for one chunk of tokens.

    The correction of a token depends on the corrections of the tokens before it. All corrections of a chunk together
    are the solution of a triangular system of equations.

    query, key: [tokens, heads, key_dim]. value: [tokens, heads, value_dim]. strength, log_decay: [tokens, heads].
    memory: [heads, key_dim, value_dim], updated in place.
    Returns [tokens, heads * value_dim], float32.
    """
    query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
    strength, log_decay = strength.T[..., None], log_decay.T
    between, from_start = _segment_sums(log_decay).exp(), log_decay.cumsum(-1).exp()[..., None]
    to_end = between[:, -1, :, None]
    strong_key = key * strength
    system = (strong_key @ key.transpose(1, 2)) * between
    known = torch.cat([value * strength, strong_key * from_start], dim=-1)
    solved = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    new_values, read_keys = torch.split(solved, [value.shape[-1], key.shape[-1]], dim=-1)
    corrections = new_values - read_keys @ memory
    result = (query * from_start) @ memory + ((query @ key.transpose(1, 2)) * between) @ corrections
    memory.mul_(from_start[:, -1:]).add_((key * to_end).transpose(1, 2) @ corrections)
    return result.transpose(0, 1).flatten(1)


def _space_chunk(values: Tensor, keys: Tensor, queries: Tensor, log_decay: Tensor, memory: Tensor) -> Tensor:
    """Selective state space for one chunk of tokens.

    values: [tokens, heads, head_dim], times the time step. keys, queries: [tokens, groups, state_size].
    log_decay: [tokens, heads].
    memory: [heads, head_dim, state_size], updated in place.
    Returns [tokens, heads, head_dim], float32.
    """
    shared = values.shape[1] // keys.shape[1]
    values, log_decay = values.transpose(0, 1), log_decay.T
    keys, queries = keys.transpose(0, 1), queries.transpose(0, 1)
    between, from_start = _segment_sums(log_decay).exp(), log_decay.cumsum(-1).exp()[..., None]
    scores = (queries @ keys.transpose(1, 2)).repeat_interleave(shared, dim=0) * between
    keys, queries = (tensor.repeat_interleave(shared, dim=0) for tensor in (keys, queries))
    result = scores @ values + (queries * from_start) @ memory.transpose(1, 2)
    to_end = between[:, -1, :, None]
    memory.mul_(from_start[:, -1:]).add_(values.transpose(1, 2) @ (keys * to_end))
    return result.transpose(0, 1)


def _segment_sums(x: Tensor) -> Tensor:
    """Sums of the values after token j up to token i, and minus infinity where j is after i.

    The values are added up separately for each j. The difference of two sums from the start of the chunk would lose
    digits where both sums are large.

    x: [heads, tokens], float32.
    Returns [heads, tokens (i), tokens (j)], float32.
    """
    tokens = x.shape[-1]
    after = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril(-1)
    sums = x[..., None].expand(*x.shape, tokens).masked_fill(~after, 0).cumsum(-2)
    return sums.masked_fill(after.T, -torch.inf)
