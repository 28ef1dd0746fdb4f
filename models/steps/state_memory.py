"""Memory for the states of mixers: one slot per sequence or snapshot of a sequence. The engine allocates the slots.

The state of a sequence has a constant size, unlike its keys and values. See docs/decisions/0071-per-sequence-state.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import torch
from torch import Tensor

from models.backends.cpu.programs import inputs
from models.backends.cpu.programs.inputs import InputValues
from models.backends.lazy_zeros import give_back_pages, lazy_zeros
from models.config import MixerConfig

ZERO_STATE = -1
"""Stands in place of the slot from which a row reads its state, if the row begins its text: the state is then zero."""


class StateMemory:
    """Memory for the states of all mixers of one stack, float32.

    states: the state tensors of each layer with a mixer, by the layer's index in the stack. Each is [slots, *shape].
    addresses: values of program inputs: the address of each tensor.
    """

    def __init__(self, mixers: Mapping[int, MixerConfig], num_slots: int, device: torch.device) -> None:
        self.num_slots = num_slots
        self.states: dict[int, tuple[Tensor, ...]] = {
            layer: tuple(lazy_zeros((num_slots, *shape), torch.float32, device) for shape in mixer.state_shapes)
            for layer, mixer in mixers.items()
        }
        self.addresses: InputValues = {
            inputs.state(layer, index, tuple(tensor.shape[1:])): tensor.data_ptr()
            for layer, tensors in self.states.items()
            for index, tensor in enumerate(tensors)
        }

    @staticmethod
    def slot_bytes(mixers: Iterable[MixerConfig]) -> int:
        """Bytes of one slot: the states of all layers with a mixer."""
        return sum(prod(shape) * torch.float32.itemsize for mixer in mixers for shape in mixer.state_shapes)

    def give_back(self) -> None:
        """Return the memory of all slots to the system, until they are written again. No slot may be in use."""
        for tensors in self.states.values():
            for tensor in tensors:
                give_back_pages(tensor)

    def start(self, layer: int, starts: Iterable[tuple[int, int]]) -> None:
        """Set the states of slots of one layer: copy another slot, or fill with zeros.

        starts: pairs of the slot to copy, or `ZERO_STATE`, and the slot to set; processed in order.
        """
        for source, slot in starts:
            for tensor in self.states[layer]:
                if source == ZERO_STATE:
                    tensor[slot] = 0
                else:
                    tensor[slot] = tensor[source]
