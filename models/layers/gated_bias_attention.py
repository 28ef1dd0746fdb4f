"""Self-attention with a bias by distance that is scaled by a gate of each query (WavLM)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from models.backends.attention_metadata import KeyBias
from models.backends.choice import backend
from models.config import GatedBiasAttentionConfig, RopeConfig
from models.layers.full_sequence_attention import FullSequenceAttention
from models.layers.linear import Linear, parameter
from models.layers.positions import PositionEncodings, Rotation
from models.steps.batch import WholeBatch

GATE_FEATURES = 8
"""Number of features of a head from which its gate is computed: four for each of two factors."""
BLOCK_QUERIES = 128
"""Number of queries whose scores are computed together. It bounds the memory for biases, which would otherwise grow
with the square of the length."""


@dataclass(frozen=True)
class GatedBiasPlan:
    """Data of a step that all layers share.

    offsets: index of each sequence's first token, and at the end the number of tokens.
    bias: [heads, 2 * length - 1], score bias by distance.
    """

    offsets: tuple[int, ...]
    bias: Tensor


class GatedBiasAttention(FullSequenceAttention[GatedBiasPlan]):
    """Attention that adds the score bias of the stack, times a gate that is computed from the input of the layer.

    bias_gate: linear from the input features of a head to `GATE_FEATURES` features.
    bias_gate_scale: [1, heads, 1, 1], model dtype, factor of the second part of the gate.
    Source: Chen et al. 2021, arXiv:2110.13900, section 3.1.
    """

    config: GatedBiasAttentionConfig

    def __init__(self, config: GatedBiasAttentionConfig, hidden_size: int) -> None:
        super().__init__(config, hidden_size)
        self.bias_gate = Linear(config.head_dim, GATE_FEATURES, bias=True)
        self.bias_gate_scale = parameter(1, config.num_heads, 1, 1)

    def make_plan(self, batch: WholeBatch, encodings: PositionEncodings, dtype: torch.dtype) -> GatedBiasPlan:
        bias = encodings.score_bias
        assert bias is not None and not isinstance(bias, KeyBias), "gated attention needs a bias by distance"
        return GatedBiasPlan(batch.offsets, bias)

    def forward(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation], plan: GatedBiasPlan) -> Tensor:
        query, key, value = self.queries_keys_values(hidden, rotations)
        gates, output = self._gates(hidden), torch.empty_like(query)
        for start, end in pairwise(plan.offsets):
            for first in range(start, end, BLOCK_QUERIES):
                rows = slice(first, min(first + BLOCK_QUERIES, end))
                mask = gates[:, rows, None] * _biases(plan.bias, rows.start - start, rows.stop - start, end - start)
                block, sides = query[None, rows], (key[None, start:end], value[None, start:end])
                output[rows] = backend(block).block_attention(
                    block, *sides, mask[None].to(query.dtype), self.config.scale
                )[0]
        return self.project_output(output)

    def _gates(self, hidden: Tensor) -> Tensor:
        """The gate of each token and head, by which the bias is multiplied: [heads, tokens], float32."""
        heads = hidden.view(len(hidden), self.config.num_heads, -1)
        features = self.bias_gate(heads.flatten(0, 1)).view(*heads.shape[:2], 2, GATE_FEATURES // 2)
        first, second = features.float().sum(-1).sigmoid().unbind(-1)
        scale = self.bias_gate_scale.float().view(1, -1)
        gates: Tensor = first * (second * scale - 1) + 2
        return gates.T


def _biases(bias: Tensor, first: int, end: int, length: int) -> Tensor:
    """Score biases between the queries `first` to `end - 1` of a sequence and all keys of the sequence.

    bias: [heads, 2 * n - 1], by distance `key - query` from `1 - n` on.
    Returns [heads, end - first, length], float32.
    """
    zero = bias.shape[1] // 2
    keys = torch.arange(length, device=bias.device)
    queries = torch.arange(first, end, device=bias.device)
    return bias[:, keys - queries[:, None] + zero].float()
