"""Mixtures of experts by compiled kernels (`kernels/experts.h`): all experts of a layer in one weight per product.

The result of a token has the same bits in a batch of any size. The number of tokens of each expert is read by the
kernels alone, not by Python.
"""

from __future__ import annotations

from torch import Tensor

from models.backends.cpu.expert_groups import ExpertGroups, group_by_expert
from models.backends.cpu.linear import CpuWeight
from models.backends.cpu.operations import run
from models.backends.cpu.programs.trace import SymbolicTensor
from models.config import MixtureOfExpertsConfig


def sum_of_experts(
    x: Tensor, groups: ExpertGroups, shares: Tensor, shared: Tensor | None, shared_gate: Tensor | None
) -> Tensor:
    """Sum of the results of each token's experts, each times its share, in float32.

    x: [tokens, choices, width], in the sorted order of `groups`, contiguous.
    shares: [tokens, choices], float32.
    shared: [tokens, width], contiguous, added to the sum, or None.
    shared_gate: [tokens, 1]; `shared` is first multiplied by its sigmoid. None for a factor of one.
    Returns [tokens, width].
    """
    tokens, choices, width = x.shape
    out = x.new_empty((tokens, width))
    run(
        "sum_of_experts",
        x.dtype,
        x,
        x=x,
        places=groups.places,
        shares=shares,
        shared=shared,
        shared_gate=shared_gate,
        # A trace sets the residual when it fuses a sum into this operation.
        residual=None,
        residual_stride=0,
        out=out,
        rows=tokens,
        choices=choices,
        width=width,
    )
    return out


class PackedExperts:
    """The experts of one layer.

    inner: weight of the first products of all experts, [experts * columns, hidden]. The columns of an expert are padded
        to whole panels of `PANEL`; each panel of a gate is followed by the panel of `up` that it multiplies.
    outer: weight of the last products, [experts * columns, intermediate], padded likewise.
    """

    def __init__(self, inner: CpuWeight, outer: CpuWeight, config: MixtureOfExpertsConfig) -> None:
        self._inner, self._outer, self._config = inner, outer, config

    def mix(
        self, x: Tensor, shares: Tensor, experts: Tensor, shared: Tensor | None, shared_gate: Tensor | None
    ) -> Tensor:
        """For each token, the sum of its experts' outputs, weighted by their shares, plus the shared expert's output.

        The output of the shared expert is multiplied by `sigmoid(shared_gate)`.

        x: [tokens, hidden]. shares: [tokens, choices], float32. experts: [tokens, choices], int64.
        shared: [tokens, hidden] or None. shared_gate: [tokens, 1], or None for a factor of one.
        Returns [tokens, hidden].
        """
        if not isinstance(x, SymbolicTensor) and x.shape[0] == 0:
            return x  # the kernel that sorts tokens writes the number of tasks even without a token
        expert, groups = self._config.expert, group_by_expert(experts, self._config.num_experts)
        inner = self._inner.multiply_experts(
            x, groups, expert.intermediate_size, expert.activation, expert.gated, expert.limit, expert.up_offset
        )
        outputs = self._outer.multiply_experts(inner, groups, x.shape[1])
        return sum_of_experts(outputs, groups, shares, shared, shared_gate)
