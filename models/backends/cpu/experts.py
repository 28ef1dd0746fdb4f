"""Mixtures of experts by compiled kernels (`kernels/experts.h`): all experts of a layer in one weight per product.

The result of a token has the same bits in a batch of any size. The number of tokens per expert is known to the kernels
only, not to Python.
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
    """Add up the outputs of each token's experts, each multiplied by its share. Sums are in float32.

    x: [tokens, choices, width], contiguous: outputs of the experts, in the sorted order of `groups`.
    shares: [tokens, choices], float32: weight of each expert.
    shared: [tokens, width], contiguous: output of the shared expert, which is added to the sum; None without one.
    shared_gate: [tokens, 1]: `shared` is first multiplied by `sigmoid(shared_gate)`. None for a factor of one.
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
    """The weights of all experts of one layer, packed for the compiled kernels.

    inner: the first matrices of all experts as one weight, [experts * columns, hidden]. The columns of an expert are
        padded to whole panels of `PANEL` columns. Each panel of the gate matrix is followed by the panel of the `up`
        matrix with the same columns.
    outer: the last matrices of all experts as one weight, [experts * columns, intermediate]. The columns of an expert
        are padded to whole panels too.
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
