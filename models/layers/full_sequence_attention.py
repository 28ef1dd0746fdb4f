"""What the kinds of attention have in common that work on whole texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor

from models.batch import EncoderBatch
from models.config import RopeConfig
from models.layers.attention import Attention
from models.layers.linear import Linear, Packer
from models.layers.positions import PositionEncodings, Rotation

Plan = TypeVar("Plan")


class FullSequenceAttention(Attention, ABC, Generic[Plan]):
    """Projections as in `Attention`, but the part itself decides who sees whom, and computes every token of a text even
    where few are wanted.

    Torch does the work: no program has it, and projections keep the model's dtype.
    """

    @abstractmethod
    def plan_of(self, batch: EncoderBatch, encodings: PositionEncodings, dtype: torch.dtype) -> Plan:
        """What calls need to know of a step's texts; the same for all layers of one configuration.

        dtype: of the hidden states.
        """

    @abstractmethod
    def forward(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation], plan: Plan) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""

    def pack(self, packer: Packer, projecting: Packer, one_input: bool) -> None:
        """Put each weight into its fastest layout."""
        for child in self.children():
            if isinstance(child, Linear):
                child.pack(packer)
