"""Find the size of the largest tensor that an encoder creates, to notice attention with quadratic memory."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models.transformer import Transformer
from tests.parity.checkpoints import random_ids
from tests.parity.paged import encoder_batch


class Largest(TorchDispatchMode):
    """Record the number of elements of the largest tensor that is created in this context."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return result


@torch.inference_mode()
def largest(model: Transformer, vocab_size: int, length: int) -> int:
    """Number of elements of the largest tensor that encoding one text of this length creates."""
    batch = encoder_batch(random_ids(vocab_size, [length]), model.device)
    with Largest() as largest_tensor:
        model.encode(batch)
    return largest_tensor.elements
