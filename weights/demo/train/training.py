"""The training loop of the four demo models, and what they share: seeds, batches and saving."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

T = TypeVar("T")
Batch = dict[str, torch.Tensor]
HOME = Path(__file__).resolve().parent.parent


def seed_everything(seed: int) -> None:
    """Seed the random generators and use deterministic kernels."""
    random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors, readable by every user."""
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


def pad(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    """Stack rows of token ids, padded on the right with `value`: [rows, longest row]."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])


def by_length(items: list[T], length: Callable[[T], int], size: int, rng: random.Random) -> list[list[T]]:
    """Group items of similar length into batches of `size`, to keep padding low. The batches are in random order.

    The longest items are left out if `size` does not divide the number of items.
    """
    ordered = sorted(items, key=length)
    batches = [ordered[start : start + size] for start in range(0, len(ordered) - size + 1, size)]
    rng.shuffle(batches)
    return batches


def fit(
    model: torch.nn.Module,
    batches: Iterator[Batch],
    loss_of: Callable[[Batch], torch.Tensor],
    steps: int,
    *,
    name: str,
    learning_rate: float,
    warmup: int = 300,
    weight_decay: float = 0.01,
    save: Callable[[], None] | None = None,
    save_every: int = 500,
) -> float:
    """Train with AdamW, a linear warm-up and a cosine schedule. Returns a running mean of the loss.

    loss_of: computes the loss of a batch.
    name: label of the progress bar.
    warmup: steps in which the learning rate rises.
    save: called every `save_every` steps and at the end. It must write a complete model, so that an interrupted run
        leaves a usable one.
    """
    plain = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), eps=1e-8)

    def rate(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    recent = 0.0
    model.train()
    bar = tqdm(range(1, steps + 1), desc=name, mininterval=5.0)
    for step in bar:
        loss = loss_of(next(batches))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 10 == 0:
            recent = loss.item() if step == 10 else 0.95 * recent + 0.05 * loss.item()
            bar.set_postfix(loss=f"{recent:.4f}", refresh=False)
        if save and step % save_every == 0 and step < steps:
            model.eval()
            save()
            model.train()
    model.eval()
    if save:
        save()
    return recent
