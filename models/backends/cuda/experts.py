"""The experts of one layer, computed together by Triton kernels. The host never reads how many tokens an expert has."""

from __future__ import annotations

from torch import Tensor

from models.backends.cuda.kernels.experts import expert_linear, gated_expert_linear, group_by_expert, sum_of_experts
from models.config import MixtureOfExpertsConfig


class StackedExperts:
    """The experts of one layer. Implements `ExpertWeights`.

    inner: [experts, columns, hidden], model dtype: weights of the first products. Without a gate, `columns` is
        `intermediate`. With a gate it is twice as many: the columns of the gate matrix, then the columns of the up
        matrix.
    outer: [experts, hidden, intermediate], model dtype: weights of the last products.
    inner_bias, outer_bias: [experts, columns] and [experts, hidden], or None.
    """

    def __init__(
        self,
        inner: Tensor,
        inner_bias: Tensor | None,
        outer: Tensor,
        outer_bias: Tensor | None,
        config: MixtureOfExpertsConfig,
    ) -> None:
        self._inner, self._inner_bias, self._outer, self._outer_bias = inner, inner_bias, outer, outer_bias
        self._config = config

    def mix(
        self, x: Tensor, shares: Tensor, experts: Tensor, shared: Tensor | None, shared_gate: Tensor | None
    ) -> Tensor:
        """For each token, the sum of its experts' outputs, weighted by their shares, plus the shared expert's output.

        Arguments and result as for `ExpertWeights.mix`.
        """
        if x.shape[0] == 0:
            return x
        expert, tiles = self._config.expert, group_by_expert(experts, self._config.num_experts)
        x = x.contiguous()
        if expert.gated:
            inner = gated_expert_linear(
                x, self._inner, self._inner_bias, tiles, expert.activation, expert.limit, expert.up_offset
            )
        else:
            inner = expert_linear(x, self._inner, self._inner_bias, tiles, expert.activation)
        outputs = expert_linear(inner, self._outer, self._outer_bias, tiles)
        return sum_of_experts(outputs, shares.contiguous(), shared, shared_gate)
