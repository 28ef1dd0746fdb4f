"""Cache tensors for keys and values: write and read slots, copy and clear blocks. The engine allocates the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from models.backends.choice import backend
from models.backends.cpu.programs import inputs
from models.backends.cpu.programs.inputs import CacheRole, InputValues, ProgramInput, Side
from models.backends.lazy_zeros import give_back_pages, lazy_zeros
from models.backends.rounded_slots import CACHE_DTYPES, CacheSide, RoundedSlots
from models.config import AttentionConfig


class KVCache:
    """Keys and values of all layers of one stack, in blocks of `block_size` token slots.

    Each layer has a tensor for keys and one for values, [blocks, block_size, kv_heads, head_dim], or `RoundedSlots`. If
    the keys are also the values, both are the same tensor. A layer that reads the keys and values of an earlier
    layer shares the tensors of that layer. Blocks are filled with zeros at the start and by `clear`, so that no masked
    slot contains NaN.

    layers: attention of each layer. dtype: dtype of keys and values; int8 and fp8 round them with a scale for each slot
        and head.
    addresses: values of program inputs, for use as self-attention or as cross-attention cache: the block size, and the
        address of each tensor.
    """

    def __init__(
        self,
        layers: Sequence[AttentionConfig],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype, self.is_rounded = dtype, dtype in CACHE_DTYPES
        self.device = device
        self.keys: list[CacheSide] = []
        self.values: list[CacheSide] = []
        for layer in layers:
            if layer.key_value_layer is not None:
                self.keys.append(self.keys[layer.key_value_layer])
                self.values.append(self.values[layer.key_value_layer])
                continue
            self.keys.append(self._side(layer))
            self.values.append(self.keys[-1] if layer.values_are_keys else self._side(layer))
        self._sides = tuple({id(side): side for side in (*self.keys, *self.values)}.values())
        roles: tuple[CacheRole, ...] = ("self", "cross")
        self.addresses = {role: self._addresses(role) for role in roles}

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the cache, including the scales of rounded slots. Their first dimension is the block."""
        return [
            tensor
            for side in self._sides
            for tensor in ((side.codes, side.scales) if isinstance(side, RoundedSlots) else (side,))
        ]

    @staticmethod
    def block_bytes(layers: Sequence[AttentionConfig], block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block: its keys and values in all layers. layers: attention of each layer."""
        scale_bytes = torch.bfloat16.itemsize if dtype in CACHE_DTYPES else 0
        own = [layer for layer in layers if layer.key_value_layer is None]
        slot_bytes = sum(
            (1 if layer.values_are_keys else 2) * layer.num_kv_heads * (layer.head_dim * dtype.itemsize + scale_bytes)
            for layer in own
        )
        return block_size * slot_bytes

    def write(self, layer: int, slot_mapping: Tensor, key: Tensor, value: Tensor) -> None:
        """Store new keys and values of a layer.

        slot_mapping: [tokens], int64, slot of each token. key, value: [tokens, kv_heads, head_dim].
        """
        backend(key).write_slots(self.keys[layer], self.values[layer], slot_mapping, key, value)

    def read(self, layer: int, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values in some slots, converted to `dtype`: two tensors [tokens, kv_heads, head_dim].

        slots: [tokens], int64.
        """
        return _read(self.keys[layer], slots, dtype), _read(self.values[layer], slots, dtype)

    def copy_blocks(self, copies: Sequence[tuple[int, int, int, int]]) -> None:
        """Copy slots between blocks in every layer, for a copy on write.

        copies: (source block, destination block, first slot, slot after the last). Slots before the first slot are
            already equal in both blocks; slots after the last slot are unused.
        """
        if not copies or not self._sides:
            return
        first = self._sides[0]
        chosen = backend(first.scales if isinstance(first, RoundedSlots) else first)
        chosen.copy_blocks([side.codes if isinstance(side, RoundedSlots) else side for side in self._sides], copies)
        if self.is_rounded:
            # The scales of a block are not stored in the order of slots. They are few, so all of them are copied, as if
            # the block had one slot.
            scales = [side.scales.flatten(1)[:, None, None] for side in self._sides if isinstance(side, RoundedSlots)]
            chosen.copy_blocks(scales, [(source, destination, 0, 1) for source, destination, _, _ in copies])

    def copy_slots(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy slots to other slots in every layer. A slot may be a source and a destination: all are read first.

        sources, destinations: [n], int64, on the device of the cache. Not for rounded slots.
        """
        for tensor in self.tensors:
            slots = tensor.flatten(0, 1)
            slots.index_copy_(0, destinations, slots.index_select(0, sources))

    def by_slot(self) -> KVCache:
        """The same memory as a cache with blocks of one slot, whose block tables name the slot of each token.

        Not for rounded slots. The copy must not outlive this cache.
        """
        assert not self.is_rounded, "the scales of rounded slots are not stored in the order of slots"
        views: dict[int, CacheSide] = {
            id(side): side.view(-1, 1, *side.shape[2:]) for side in self._sides if isinstance(side, Tensor)
        }
        view = copy(self)
        view.num_blocks, view.block_size = self.num_blocks * self.block_size, 1
        view.keys, view.values = ([views[id(side)] for side in sides] for sides in (self.keys, self.values))
        view._sides = tuple(views.values())
        view.addresses = {role: view._addresses(role) for role in self.addresses}
        return view

    def clear(self, blocks: Sequence[int]) -> None:
        """Fill blocks with zeros before they are reused, because they may contain NaN or infinity."""
        if not blocks or not self.keys:
            return
        # Without `non_blocking`, the host would wait until the device has finished the steps in progress.
        index = torch.tensor(blocks).to(self.device, non_blocking=True)
        for tensor in self.tensors:
            tensor[index] = 0

    def give_back(self) -> None:
        """Return the memory of all blocks to the system, until they are written again. No block may be in use."""
        for tensor in self.tensors:
            give_back_pages(tensor)

    def _side(self, layer: AttentionConfig) -> CacheSide:
        shape = (self.num_blocks, self.block_size, layer.num_kv_heads, layer.head_dim)
        if self.is_rounded:
            return RoundedSlots.zeros(*shape, self.device, self.dtype)
        return lazy_zeros(shape, self.dtype, self.device)

    def _addresses(self, role: CacheRole) -> InputValues:
        addresses: dict[ProgramInput, int] = {inputs.block_size(role): self.block_size}
        both: tuple[tuple[Side, list[CacheSide]], ...] = (("keys", self.keys), ("values", self.values))
        for name, sides in both:
            for layer, side in enumerate(sides):
                numbers = side.codes if isinstance(side, RoundedSlots) else side
                heads, head_dim = numbers.shape[2:]
                own = inputs.cache_side(role, name, layer, heads, head_dim, self.is_rounded)
                addresses[own.numbers] = numbers.data_ptr()
                if isinstance(side, RoundedSlots):
                    addresses[own.scales] = side.scales.data_ptr()
        return addresses


def _read(side: CacheSide, slots: Tensor, dtype: torch.dtype) -> Tensor:
    return side.read(slots, dtype) if isinstance(side, RoundedSlots) else side.flatten(0, 1)[slots].to(dtype)
