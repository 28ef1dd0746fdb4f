"""Cache tensors for keys and values: write slots, copy and clear blocks. The engine decides who owns a block."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from models.backends import interface as ops
from models.config import AttentionConfig


class KVCache:
    """Keys and values of all layers of one stack, in blocks of `block_size` token slots.

    Per layer one tensor for keys and one for values: [blocks, block_size, kv_heads, head_dim]. They are the same tensor
    where keys serve as values, and those of an earlier layer where a layer reads its keys and values.
    Zeroed at the start and again by `clear`, so that no masked slot ever holds a NaN.

    addresses: for each role of the cache, "self" or "cross", the program inputs: the memory address of each tensor, by
        the name (role, "keys" or "values", layer).
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
        self.dtype = dtype
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for layer in layers:
            if layer.key_value_layer is not None:
                self.keys.append(self.keys[layer.key_value_layer])
                self.values.append(self.values[layer.key_value_layer])
                continue
            shape = num_blocks, block_size, layer.num_kv_heads, layer.head_dim
            self.keys.append(torch.zeros(shape, dtype=dtype, device=device))
            new = None if layer.values_are_keys else torch.zeros(shape, dtype=dtype, device=device)
            self.values.append(self.keys[-1] if new is None else new)
        self._tensors = tuple({id(tensor): tensor for tensor in (*self.keys, *self.values)}.values())
        sides = (("keys", self.keys), ("values", self.values))
        self.addresses: dict[str, dict[Hashable, int]] = {
            role: {(role, side, layer): one.data_ptr() for side, tensors in sides for layer, one in enumerate(tensors)}
            for role in ("self", "cross")
        }

    @staticmethod
    def block_bytes(layers: Sequence[AttentionConfig], block_size: int, dtype: torch.dtype) -> int:
        """Memory of one block in all layers, keys and values together."""
        own = [layer for layer in layers if layer.key_value_layer is None]
        numbers = sum(layer.num_kv_heads * layer.head_dim * (1 if layer.values_are_keys else 2) for layer in own)
        return numbers * block_size * dtype.itemsize

    def write(self, layer: int, slot_mapping: Tensor, key: Tensor, value: Tensor) -> None:
        """Store new keys and values. slot_mapping: [tokens], int64. key, value: [tokens, kv_heads, head_dim]."""
        ops.write_slots(self.keys[layer], self.values[layer], slot_mapping, key, value)

    def copy_blocks(self, copies: Sequence[tuple[int, int, int, int]]) -> None:
        """Copy slots between blocks in every layer, for a copy on write.

        copies: (source block, destination block, first slot, end). Slots before the first are already equal in both
            blocks; slots from `end` on are unused.
        """
        if copies and self._tensors:
            ops.copy_blocks(self._tensors, copies)

    def clear(self, blocks: Sequence[int]) -> None:
        """Fill blocks with zeros, because they may hold NaN or infinity."""
        if not blocks or not self.keys:
            return
        index = torch.tensor(blocks, device=self.keys[0].device)
        for tensor in self._tensors:
            tensor[index] = 0
