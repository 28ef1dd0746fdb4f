"""Random LoRA adapters. The reference implementation (peft) creates, saves and merges them."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import peft
import torch
from torch import nn


def save_adapter(base: nn.Module, directory: Path, seed: int, **settings) -> nn.Module:
    """Save a LoRA adapter whose two matrices are random.

    Returns the base model with the adapter merged into its weights.
    """
    torch.manual_seed(seed)
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 12, "target_modules": "all-linear", **settings})
    model = peft.get_peft_model(deepcopy(base), config)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "lora_" in name:
                tensor.normal_(0, 0.15)
    model.save_pretrained(directory)
    return model.merge_and_unload().eval()
