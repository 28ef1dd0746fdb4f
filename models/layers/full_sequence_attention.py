"""Base class of attention that needs whole sequences. It has no KV cache, and computes every token of a sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor

from models.backends.linear_weights import LinearPacker
from models.config import RopeConfig
from models.layers.attention import Attention
from models.layers.linear import Linear
from models.layers.positions import PositionEncodings, Rotation
from models.steps.batch import WholeBatch

PlanT = TypeVar("PlanT")
"""Data of a step that all layers of one attention configuration share."""


class FullSequenceAttention(Attention, ABC, Generic[PlanT]):
    """Base class of attention over whole sequences. A subclass plans once per step which keys each query attends to.

    It is never part of a compiled program, and its projections keep the dtype of the model.

    not_captured: why a step with this attention cannot be captured as a CUDA graph.
    """

    not_captured = "attention over full sequences"

    @abstractmethod
    def make_plan(self, batch: WholeBatch, encodings: PositionEncodings, dtype: torch.dtype) -> PlanT:
        """Prepare the data of a step that all layers with the same attention configuration share.

        dtype: dtype of the hidden states.
        """

    @abstractmethod
    def forward(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation], plan: PlanT) -> Tensor:
        """Attend within each sequence of the step: [tokens, hidden] -> [tokens, hidden], model dtype."""

    def pack(self, packer: LinearPacker, projection_packer: LinearPacker, one_input: bool) -> None:
        """Replace the weight of each linear by a packed weight, which `packer` makes.

        The other arguments have no effect.
        """
        for child in self.children():
            if isinstance(child, Linear):
                child.pack(packer)
