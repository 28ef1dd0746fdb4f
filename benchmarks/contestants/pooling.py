"""Padding and mean pooling, for contestants whose libraries return hidden states."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks import vocabulary


def padded(texts: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pad texts to the longest one. Returns token ids and mask (1 for tokens), both [batch, seq], int64."""
    longest = max(map(len, texts))
    ids = np.full((len(texts), longest), vocabulary.PAD, dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)], mask[row, : len(text)] = text, 1
    return ids, mask


def vectors(hidden: NDArray[np.float32], mask: NDArray[np.int64]) -> NDArray[np.float32]:
    """Mean over the tokens of each text, scaled to unit length: [batch, hidden].

    hidden: hidden states, [batch, seq, hidden]. mask: [batch, seq], 1 for tokens and 0 for padding.
    """
    weight = mask[..., None].astype(np.float32)
    mean = (hidden * weight).sum(1) / weight.sum(1)
    made = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    assert np.isfinite(made).all(), "a vector is not finite"
    return made  # type: ignore[no-any-return]
