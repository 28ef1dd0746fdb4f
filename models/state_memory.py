"""Memory for the states of mixers: one slot per sequence or snapshot. The engine decides who owns a slot.

The state of a sequence has a constant size, unlike its keys and values. See docs/decisions/0071-per-sequence-state.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from models.config import MixerConfig

ZERO_STATE = -1
"""In place of a slot that a row reads: the row begins its text, with a state of zeros."""


class StateMemory:
    """States of all mixers of one stack, float32.

    states: for each layer with a mixer, by its number in the stack, one tensor per state tensor of the mixer:
        [slots, *shape].
    """

    def __init__(self, mixers: Mapping[int, MixerConfig], num_slots: int, device: torch.device) -> None:
        self.num_slots = num_slots
        self.states: dict[int, tuple[Tensor, ...]] = {
            layer: tuple(torch.zeros(num_slots, *shape, device=device) for shape in mixer.state_shapes)
            for layer, mixer in mixers.items()
        }

    @staticmethod
    def slot_bytes(mixers: Iterable[MixerConfig]) -> int:
        """Memory of one slot in all layers."""
        return sum(prod(shape) * torch.float32.itemsize for mixer in mixers for shape in mixer.state_shapes)

    def read(self, layer: int, slots: Sequence[int]) -> tuple[Tensor, ...]:
        """Copies of the states of some slots: for each state tensor [n, *shape]. `ZERO_STATE` reads zeros."""
        tensors = self.states[layer]
        if ZERO_STATE not in slots:
            index = torch.tensor(slots, device=tensors[0].device)
            return tuple(tensor.index_select(0, index) for tensor in tensors)
        copies = tuple(tensor.new_zeros(len(slots), *tensor.shape[1:]) for tensor in tensors)
        for row, slot in enumerate(slots):
            if slot != ZERO_STATE:
                for copy, tensor in zip(copies, tensors, strict=True):
                    copy[row] = tensor[slot]
        return copies

    def write(self, layer: int, slots: Sequence[int], states: Sequence[Tensor]) -> None:
        """Store states. slots: n different slots. states: for each state tensor [n, *shape], float32."""
        for tensor, state in zip(self.states[layer], states, strict=True):
            tensor.index_copy_(0, torch.tensor(slots, device=tensor.device), state)
