"""Base class of attention that needs whole sequences: no KV cache, and every token is computed."""

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
    """Attention whose class determines which keys a query attends to, by a plan for each step.

    It is never part of a compiled program, and its projections keep the dtype of the model.

    not_captured: see `Mixer`.
    """

    not_captured = "attention over full sequences"

    @abstractmethod
    def make_plan(self, batch: WholeBatch, encodings: PositionEncodings, dtype: torch.dtype) -> PlanT:
        """Prepare the data of a step that all layers of this configuration share.

        dtype: dtype of the hidden states.
        """

    @abstractmethod
    def forward(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation], plan: PlanT) -> Tensor:
        """Attend within each sequence of the step: [tokens, hidden] -> [tokens, hidden], model dtype."""

    def pack(self, packer: LinearPacker, projection_packer: LinearPacker, one_input: bool) -> None:
        """Replace the weight of each linear by a packed one. See `Attention.pack`."""
        for child in self.children():
            if isinstance(child, Linear):
                child.pack(packer)
