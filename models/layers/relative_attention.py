"""Self-attention with scores that depend on distances, and two learned query biases (Transformer-XL, Conformer)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from models.backends.choice import backend
from models.config import RelativeAttentionConfig, RopeConfig
from models.layers.full_sequence_attention import FullSequenceAttention
from models.layers.linear import Linear, parameter
from models.layers.positions import PositionEncodings, Rotation
from models.steps.batch import WholeBatch

BLOCK_QUERIES = 128
"""Number of queries whose scores are computed together. It bounds the memory for scores, which would otherwise grow
with the square of the length."""
_BASE = 10_000.0


@dataclass(frozen=True)
class RelativePlan:
    """Data of a step that all layers share.

    offsets: index of each sequence's first token, and at the end the number of tokens.
    distances: [2 * n - 1, hidden], model dtype: vectors of the distances `query - key` from `n - 1` to `1 - n`, where n
        is the length of the longest sequence.
    """

    offsets: tuple[int, ...]
    distances: Tensor


class RelativeAttention(FullSequenceAttention[RelativePlan]):
    """Attention with the scores `(q + content_bias) k + (q + distance_bias) r`; r: the distance's projected vector.

    distance_key: projection of the vectors of distances. content_bias, distance_bias: [heads, head_dim], model dtype.
    Source: Dai et al. 2019, arXiv:1901.02860, section 3.3.
    """

    config: RelativeAttentionConfig

    def __init__(self, config: RelativeAttentionConfig, hidden_size: int) -> None:
        super().__init__(config, hidden_size)
        self.hidden_size = hidden_size
        self.distance_key = Linear(hidden_size, config.num_heads * config.head_dim, bias=False)
        self.content_bias = parameter(config.num_heads, config.head_dim)
        self.distance_bias = parameter(config.num_heads, config.head_dim)

    def make_plan(self, batch: WholeBatch, encodings: PositionEncodings, dtype: torch.dtype) -> RelativePlan:
        longest, device = max(batch.lengths), batch.positions.device
        return RelativePlan(batch.offsets, distance_vectors(longest, self.hidden_size).to(device, dtype))

    def forward(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation], plan: RelativePlan) -> Tensor:
        query, key, value = self.queries_keys_values(hidden, rotations)
        distances = self._split_heads(self.distance_key(plan.distances)).permute(1, 2, 0)
        by_content, by_distance = query + self.content_bias, (query + self.distance_bias).transpose(0, 1)
        output, zero = torch.empty_like(query), plan.distances.shape[0] // 2
        for start, end in pairwise(plan.offsets):
            keys = torch.arange(end - start, device=query.device)
            for first in range(start, end, BLOCK_QUERIES):
                rows = slice(first, min(first + BLOCK_QUERIES, end))
                columns = keys - keys[rows.start - start : rows.stop - start, None] + zero
                scores = by_distance[:, rows] @ distances
                mask = scores.gather(2, columns.expand(len(scores), -1, -1)) * self.config.scale
                sides = key[None, start:end], value[None, start:end]
                output[rows] = backend(query).block_attention(
                    by_content[None, rows], *sides, mask[None], self.config.scale
                )[0]
        return self.project_output(output)


def distance_vectors(length: int, width: int) -> Tensor:
    """Vectors of the distances from `length - 1` down to `1 - length`: [2 * length - 1, width], float32.

    Sines and cosines alternate in each vector.
    """
    frequencies = 1.0 / (_BASE ** (torch.arange(0, width, 2, dtype=torch.float, device="cpu") / width))
    angles = torch.arange(length - 1, -length, -1, device="cpu")[:, None].float() * frequencies
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
