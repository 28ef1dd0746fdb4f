"""Results of `Encode` items from the extra heads of a checkpoint, such as those for late interaction or entities.

Each text is computed alone from its hidden states. The other texts of a step therefore do not change its result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.layers.pooling import normalize
from models.layers.token_heads import TokenHeads
from server.ipc.wire.encode_messages import Encode, EncodeItem

Weights = tuple[NDArray[np.float32], list[int]]
"""Weights above zero, [1, n], and their token ids, ascending."""


def token_vectors(heads: TokenHeads, message: Encode, item: EncodeItem, hidden: Tensor) -> Tensor:
    """The vectors of a text for late interaction: [vectors, width], float32.

    hidden: [tokens, hidden], model dtype, of the text.
    """
    assert heads.vectors is not None, "the model has no late interaction"
    vectors: Tensor = heads.vectors(hidden)
    vectors = vectors[_kept(message, item, vectors.device)]
    return normalize(vectors) if message.normalize and not heads.vectors.config.normalize else vectors


def max_sim(heads: TokenHeads, message: Encode, item: EncodeItem, hidden: Tensor) -> Tensor:
    """The score of a text for the query of the message: [1, 1], float32.

    For each query vector, the largest dot product with a vector of the text is found; the score is the sum of these.
    A text without vectors gets minus the number of query vectors, the lowest score that unit vectors can have.
    Source: Khattab and Zaharia 2020, arXiv:2004.12832, section 3.3.
    """
    assert heads.vectors is not None, "the model has no late interaction"
    vectors: Tensor = heads.vectors(hidden)
    vectors = vectors[_kept(message, item, vectors.device)]
    query = torch.frombuffer(bytearray(message.query), dtype=torch.float32).view(-1, vectors.shape[1])
    if not len(vectors):
        return torch.full((1, 1), -float(len(query)))
    return (vectors @ query.to(vectors.device).T).amax(0).sum().view(1, 1)


def token_weights(heads: TokenHeads, message: Encode, item: EncodeItem, hidden: Tensor) -> Weights:
    """The weight of each distinct token of a text: the largest one if the token occurs several times.

    Tokens in `message.skipped_ids` are left out. If a weight is not finite, the result is a single NaN.
    Source: Chen et al. 2024, arXiv:2402.03216, section 3.2.
    """
    assert heads.weights is not None, "the model has no weights of tokens"
    weights = heads.weights(hidden).cpu().numpy()
    if not np.isfinite(weights).all():
        return np.full((1, 1), np.nan, np.float32), [0]
    ids, places = np.unique(np.array(item.token_ids), return_inverse=True)
    largest = np.zeros(len(ids), np.float32)
    np.maximum.at(largest, places, weights)
    largest[np.isin(ids, np.array(message.skipped_ids, dtype=ids.dtype))] = 0.0
    (found,) = np.nonzero(largest)
    return largest[found][None], ids[found].tolist()


def labelled_spans(heads: TokenHeads, message: Encode, item: EncodeItem, hidden: Tensor) -> Tensor:
    """The entities of a text: [entities, 4], float32: index of first word, of last word, of label, and probability."""
    assert heads.spans is not None, "the model reads no labels"
    words = [first for first, _ in item.spans]
    found: Tensor = heads.spans(hidden, words, item.label_indices, message.threshold)
    return found


def labelled_classes(heads: TokenHeads, message: Encode, item: EncodeItem, hidden: Tensor) -> Tensor:
    """The logit of each label for the whole text: [1, labels], float32."""
    assert heads.spans is not None, "the model reads no labels"
    logits: Tensor = heads.spans.classify(hidden, item.label_indices)
    return logits[None]


def _kept(message: Encode, item: EncodeItem, device: torch.device) -> Tensor:
    """Indices of the tokens of a text that have a vector: [n], int64."""
    ids = np.array(item.token_ids)
    kept = ~np.isin(ids, np.array(message.skipped_ids, dtype=ids.dtype))
    kept[: item.prompt_tokens] = False
    return torch.from_numpy(np.flatnonzero(kept)).to(device)


def problem_of(message: Encode, heads: Sequence[str]) -> str:
    """Why a message for one of the extra heads is not valid; empty if it is valid.

    heads: tasks that the heads of the model compute.
    """
    if message.task not in heads:
        return f"the model does not compute {message.task}"
    if message.task == "answer_logits" and not message.target_ids:
        return "the message names no tokens of an answer"
    if message.task not in ("labelled_spans", "labelled_classes"):
        return ""
    for item in message.items:
        places = [first for first, _ in item.spans] + item.label_indices
        has_words = bool(item.spans) or message.task == "labelled_classes"
        if not has_words or not item.label_indices or not all(0 <= at < len(item.token_ids) for at in places):
            return "a word or a label is outside of the text, or there are none"
    return ""
