"""The experts of one layer, computed together by Triton kernels. The host never reads how many tokens an expert has."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor
from torch.nn import functional as F

from models.backends.cuda.kernels.expert_epilogue import EpilogueSettings
from models.backends.cuda.kernels.expert_tiles import ExpertTiles, group_by_expert
from models.backends.cuda.kernels.experts import ExpertMatrix, expert_linear, sum_of_experts
from models.backends.cuda.product_choice import RowRounding
from models.config import MixtureOfExpertsConfig


class ExpertProduct(NamedTuple):
    """Weights of one product of all experts.

    matrix: weights or codes, [experts, columns, in]. bias: [experts, columns] or None.
    padding: number of zeros to append to each row of the input.
    rounding: whether and how the input rows are rounded, which depends on the mean number of rows per expert. None for
        a float matrix.
    """

    matrix: ExpertMatrix
    bias: Tensor | None
    padding: int = 0
    rounding: RowRounding | None = None

    def multiply(self, x: Tensor, tiles: ExpertTiles, settings: EpilogueSettings) -> Tensor:
        """Multiply each (token, expert) pair by the weight of its expert.

        x: [tokens, in], one row per token, or [tokens * choices, in], one row per pair.
        tiles: the pairs, sorted by expert and cut into tiles. settings: bias, activation and gate of the products.
        Returns [tokens * choices, columns], in the order of pairs; with a gate, half as many columns.
        """
        x = F.pad(x, (0, self.padding)) if self.padding else x.contiguous()
        if self.rounding is None:
            return expert_linear(x, self.matrix, self.bias, tiles, settings)
        rows = self.rounding.apply(x, tiles.order.shape[0] / self.matrix[0].shape[0])
        return expert_linear(rows, self.matrix, self.bias, tiles, settings, x.dtype)


class StackableWeight(Protocol):
    """A packed weight of a CUDA device with the output features of all experts, one expert after another."""

    def of_experts(self, num_experts: int) -> ExpertProduct:
        """The same weight, divided into experts."""


class StackedExperts:
    """The experts of one layer. Implements `ExpertWeights`.

    inner: weights of the first products. With a gate, an expert has the features of the gate, then as many of up.
    outer: weights of the last products.
    fixed_order: whether the result of a token has the same bits for every number of tokens.
    """

    def __init__(
        self, inner: StackableWeight, outer: StackableWeight, config: MixtureOfExpertsConfig, fixed_order: bool = False
    ) -> None:
        self._inner, self._outer = (weight.of_experts(config.num_experts) for weight in (inner, outer))
        self._config, self._fixed_order = config, fixed_order

    def mix(
        self, x: Tensor, shares: Tensor, experts: Tensor, shared: Tensor | None, shared_gate: Tensor | None
    ) -> Tensor:
        """For each token, the sum of its experts' outputs, weighted by their shares, plus the shared expert's output.

        x: [tokens, hidden]. shares: [tokens, choices], float32. experts: [tokens, choices], int64.
        shared: [tokens, hidden] or None. shared_gate: [tokens, 1]: `shared` is multiplied by its sigmoid; None for a
            factor of one.
        Returns [tokens, hidden].
        """
        if x.shape[0] == 0:
            return x
        expert = self._config.expert
        tiles = group_by_expert(experts, self._config.num_experts, self._fixed_order)
        settings = EpilogueSettings(expert.activation, expert.gated, expert.limit, expert.up_offset)
        if not expert.gated:
            settings = EpilogueSettings(expert.activation)
        inner = self._inner.multiply(x, tiles, settings)
        outputs = self._outer.multiply(inner, tiles, EpilogueSettings())
        return sum_of_experts(outputs, shares.contiguous(), shared, shared_gate)
