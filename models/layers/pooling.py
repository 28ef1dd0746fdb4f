"""Pooling: one vector per sequence, computed from the hidden states of its tokens. Has no weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from models.backends.choice import backend
from models.config.sentence import Pooling
from models.steps.batch import EncoderBatch


def pool(hidden: Tensor, batch: EncoderBatch, mode: Pooling, skipped: Sequence[int] | None = None) -> Tensor:
    """Compute one vector per sequence. Sequences are pooled separately, so a vector does not depend on other sequences.

    hidden: [tokens, hidden], model dtype, or [batch, hidden] where the batch has `output_positions`.
    mode: `cls` takes the first token; `mean_sqrt` divides the sum by the square root of the length; `weighted_mean`
        gives the token at position i the weight i + 1 (Muennighoff 2022, arXiv:2202.08904).
    skipped: for each sequence, number of tokens at its beginning to leave out; None to leave out no tokens. The last
        token is always pooled.
    Returns [batch, hidden], float32.
    """
    positions = output_positions(batch, mode, skipped)
    if positions is not None:
        return batch.one_of_each(hidden, positions).float()
    starts = _start_positions(batch, skipped)
    spans = [(first + start, end) for (first, end), start in zip(pairwise(batch.offsets), starts, strict=True)]
    if mode == "mean":
        return backend(hidden).means_of_spans(hidden, spans)
    parts = [hidden[first:end].float() for first, end in spans]
    return torch.stack([_reduced(part, start, mode) for part, start in zip(parts, starts, strict=True)])


def output_positions(
    batch: EncoderBatch, mode: Pooling, skipped: Sequence[int] | None = None
) -> tuple[int, ...] | None:
    """Position of the one token that `pool` takes from each sequence; None if it takes several tokens."""
    match mode:
        case "cls":
            return tuple(_start_positions(batch, skipped))
        case "last":
            return tuple(length - 1 for length in batch.lengths)
        case _:
            return None


def _start_positions(batch: EncoderBatch, skipped: Sequence[int] | None) -> list[int]:
    """Position of the first token of each sequence that is pooled."""
    if skipped is None:
        return [0] * len(batch.lengths)
    return [min(count, length - 1) for count, length in zip(skipped, batch.lengths, strict=True)]


def _reduced(part: Tensor, start: int, mode: Pooling) -> Tensor:
    """Pool one sequence.

    part: [seq, hidden], float32, the tokens from position `start` on.
    Returns [hidden], float32.
    """
    match mode:
        case "max":
            return part.amax(0)
        case "mean_sqrt":
            return part.sum(0) / math.sqrt(len(part))
        case "weighted_mean":
            weights = torch.arange(start + 1, start + len(part) + 1, device=part.device, dtype=part.dtype)
            return (weights[:, None] * part).sum(0) / weights.sum()
        case _:
            raise AssertionError(f"pooling mode {mode} is handled by pool()")


def normalize(vectors: Tensor) -> Tensor:
    """Scale each vector to unit length; a zero vector stays zero. [batch, hidden] -> [batch, hidden]."""
    return backend(vectors).unit_rows(vectors)
