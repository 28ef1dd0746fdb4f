"""Sort the (token, expert) pairs of a step by expert, with a compiled kernel (`kernels/experts.h`)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from models.backends.cpu.operations import run


class ExpertGroups(NamedTuple):
    """The (token, expert) pairs of a step, sorted by expert.

    Pair `token * choices + c` consists of a token and its expert at index `c`.

    order: [tokens, choices], the pair at each index of the sorted order.
    places: [tokens, choices], the index of each pair in the sorted order.
    tasks: [tokens, choices, 3], one triple per task: expert, first index in the sorted order, and index after the last.
        Only the first `num_tasks` triples are used.
    num_tasks: [tokens, 1]. Only the first element is used: the number of tasks.
    All int64. Sizes are multiples of the number of tokens, because a program allocates memory per token.
    """

    order: Tensor
    places: Tensor
    tasks: Tensor
    num_tasks: Tensor


def group_by_expert(experts: Tensor, num_experts: int) -> ExpertGroups:
    """Sort the (token, expert) pairs by expert, and by token within an expert, and divide them into tasks.

    A task has pairs of one expert only.
    experts: [tokens, choices], int64: the chosen experts of each token.
    """
    tokens, choices = experts.shape
    groups = ExpertGroups(
        *(
            experts.new_empty(shape)
            for shape in ((tokens, choices), (tokens, choices), (tokens, choices, 3), (tokens, 1))
        )
    )
    run(
        "group_by_expert",
        torch.float32,
        experts,
        experts=experts,
        rows=tokens,
        choices=choices,
        num_experts=num_experts,
        **groups._asdict(),
    )
    return groups
