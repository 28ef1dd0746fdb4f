"""DeBERTa's attention: scores are sums of a content-to-content term and of terms for the relative distance.

Source: He et al. 2021, arXiv:2006.03654, section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from models.backends.attention_metadata import AttentionMetadata, Distances
from models.backends.choice import backend
from models.config import DisentangledConfig, DistanceConfig, RopeConfig
from models.layers.full_sequence_attention import FullSequenceAttention
from models.layers.linear import Linear, parameter
from models.layers.norms import make_norm
from models.layers.positions import PositionEncodings, Rotation
from models.steps.batch import WholeBatch


def row_of_distance(distance: Tensor, config: DistanceConfig) -> Tensor:
    """Row of each distance in a `DistanceTable`. A distance is `query position - key position`.

    distance: any shape, int64.
    Returns rows of the same shape, int64. Distance zero has row `span`. Distances outside of the table use its first or
    last row.
    With buckets, distances up to half of `num_buckets` have separate rows. Farther distances share rows, whose ranges
    grow logarithmically up to `max_distance`. The logarithm is float32 and rounded up, as in the published code.
    """
    if config.num_buckets is not None:
        exact = config.num_buckets // 2
        far = torch.log(distance.abs().clamp(min=exact) / exact)
        growth = torch.log(torch.tensor((config.max_distance - 1) / exact, device=distance.device))
        steps = torch.ceil(far / growth * (exact - 1)).long() + exact
        distance = torch.where(distance.abs() <= exact, distance, steps * distance.sign())
    return (distance + config.span).clamp(0, 2 * config.span - 1)


class DistanceTable(nn.Module):
    """One vector per relative distance, shared by all layers of a stack.

    weight: [2 * span, hidden], model dtype.
    """

    def __init__(self, config: DistanceConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.weight = parameter(2 * config.span, hidden_size)
        self.norm = make_norm(config.norm, hidden_size)

    def forward(self, length: int) -> Distances:
        """The vectors of all distances that occur between `length` tokens.

        Other rows of the table are left out, so that short sequences take less time.
        """
        rows = row_of_distance(torch.arange(1 - length, length, device="cpu"), self.config)
        first, last = int(rows[0]), int(rows[-1])
        vectors = self.weight[first : last + 1]
        return Distances(vectors if self.norm is None else self.norm(vectors), (rows - first).to(self.weight.device))


class DisentangledAttention(FullSequenceAttention[AttentionMetadata]):
    """Attention that adds two products to the scores: query times distance key, and key times distance query.

    All three terms of a score have the same scale.
    """

    unadaptable = ("query", "key", "position_query", "position_key")

    def __init__(self, config: DisentangledConfig, hidden_size: int) -> None:
        super().__init__(config, hidden_size)
        width = config.num_heads * config.head_dim
        to_position, to_content = config.content_to_position, config.position_to_content
        self.position_key: Linear | None = self.key if to_position else None
        self.position_query: Linear | None = self.query if to_content else None
        if config.own_projections:
            self.position_key = Linear(hidden_size, width, config.position_key_bias) if to_position else None
            self.position_query = Linear(hidden_size, width, bias=True) if to_content else None

    def make_plan(self, batch: WholeBatch, encodings: PositionEncodings, dtype: torch.dtype) -> AttentionMetadata:
        """Attention metadata of the step: every token attends to every token of its sequence."""
        return AttentionMetadata(batch.lengths, batch.lengths, distances=encodings.distances)

    def forward(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation], plan: AttentionMetadata) -> Tensor:
        assert plan.distances is not None, "disentangled attention needs the distances of its stack"
        vectors = plan.distances.vectors
        keys, queries = (
            None if project is None else self._split_heads(project(vectors))
            for project in (self.position_key, self.position_query)
        )
        query, key, value = self.queries_keys_values(hidden, rotations)
        return self.project_output(
            backend(query).disentangled_attention(query, key, value, keys, queries, plan, self.config.scale)
        )
