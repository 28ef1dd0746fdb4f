"""Attention heads together with heads that convolve the values of neighbouring tokens (ConvBERT)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.choice import backend
from models.config import ConvolutionAttentionConfig, RopeConfig
from models.layers.full_sequence_attention import FullSequenceAttention
from models.layers.linear import ConvolutionWeights, Linear
from models.layers.positions import PositionEncodings, Rotation
from models.steps.batch import WholeBatch


class ConvolutionPlan(NamedTuple):
    """Data of a step that all layers share: attention metadata, and the neighbours of each token.

    metadata: attention metadata of the attention heads.
    neighbours: [kernel_size, tokens], int64: row of each neighbour of each token. A neighbour outside of the text has
        the index `tokens`, one beyond the last row.
    """

    metadata: AttentionMetadata
    neighbours: Tensor


class ConvolutionAttention(FullSequenceAttention[ConvolutionPlan]):
    """Attention heads, and convolution heads whose kernels are computed from each token and its neighbours.

    The kernel of a head is the softmax of `kernel(pointwise(depthwise(x)) * query(x))`. It weighs the projected values
    of the neighbours. The output projection reads the results of all attention heads, then the results of all
    convolution heads.

    depthwise: [hidden, 1, kernel_size], weight of a convolution of the input, separate for each feature.
    pointwise: projects the result of `depthwise` to the width of the queries.
    kernel: projects from the width of the queries to heads * kernel_size.
    convolved: projects the input to the values of the convolution heads.
    Source: Jiang et al. 2020, arXiv:2008.02496, section 3.2.
    """

    def __init__(self, config: ConvolutionAttentionConfig, hidden_size: int) -> None:
        super().__init__(config, hidden_size)
        self.kernel_size, width = config.kernel_size, config.num_heads * config.head_dim
        self.depthwise = ConvolutionWeights(hidden_size, 1, config.kernel_size, bias=False)
        self.pointwise = Linear(hidden_size, width, bias=True)
        self.kernel = Linear(width, config.num_heads * config.kernel_size, bias=True)
        self.convolved = Linear(hidden_size, width, bias=True)
        self.output = Linear(2 * width, hidden_size, config.output_bias)

    def make_plan(self, batch: WholeBatch, encodings: PositionEncodings, dtype: torch.dtype) -> ConvolutionPlan:
        counts = torch.tensor(batch.lengths, device=batch.positions.device)
        lengths, side = counts.repeat_interleave(counts), self.kernel_size // 2
        rows, neighbours = torch.arange(len(lengths), device=counts.device), []
        for offset in range(-side, side + 1):
            place = batch.positions + offset
            neighbours.append(torch.where((place >= 0) & (place < lengths), rows + offset, len(rows)))
        return ConvolutionPlan(AttentionMetadata(batch.lengths, batch.lengths), torch.stack(neighbours))

    def forward(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation], plan: ConvolutionPlan) -> Tensor:
        query = self.query(hidden)
        heads, key, value = (self._split_heads(x) for x in (query, self.key(hidden), self.value(hidden)))
        attended = backend(heads).ragged_attention(heads, key, value, plan.metadata, self.config.scale)
        convolved = self._convolve(hidden, query, plan.neighbours)
        output: Tensor = self.output(torch.cat([attended.flatten(1), convolved], 1))
        return output

    def _convolve(self, hidden: Tensor, query: Tensor, neighbours: Tensor) -> Tensor:
        """Compute the convolution heads. hidden: [tokens, hidden]. query: [tokens, width]. Returns [tokens, width].

        The sums are added one neighbour after another, so that the bits of a token do not depend on the other texts.
        """
        weights = self.depthwise.weight[:, 0].T.float()
        mixed = _sum_of_neighbours(hidden, neighbours, weights)
        kernels = self.kernel(self.pointwise(mixed) * query)
        shares = kernels.view(len(hidden), self.config.num_heads, self.kernel_size).float().softmax(-1)
        values = self.convolved(hidden)
        # One share per head: [kernel_size, tokens, heads, 1].
        shares = shares.permute(2, 0, 1)[..., None]
        return _sum_of_neighbours(self._split_heads(values), neighbours, shares).flatten(1)


def _sum_of_neighbours(x: Tensor, neighbours: Tensor, weights: Tensor) -> Tensor:
    """For each token, add up the rows of its neighbours, each multiplied by a weight, in float32.

    x: [tokens, ...], model dtype.
    neighbours: [kernel_size, tokens], int64: row of each neighbour of each token; `tokens` for a neighbour outside of
        the text.
    weights: [kernel_size, ...], float32. The weights of a neighbour broadcast with x.
    Returns a tensor like x.
    """
    padded = torch.cat([x, x.new_zeros((1, *x.shape[1:]))]).float()
    total = padded[neighbours[0]] * weights[0]
    for own, weight in zip(neighbours[1:], weights[1:], strict=True):
        total = total + padded[own] * weight
    return total.to(x.dtype)
