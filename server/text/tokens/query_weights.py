"""Sparse embeddings of queries from stored token weights, without running a model: inference-free SPLADE.

Documents go through a masked language model. The sparse vector of a query has a stored weight for each of its tokens.
Sources: Geng et al. 2024, arXiv:2411.04403; `SparseStaticEmbedding` of sentence-transformers 6.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weights.bounded_json import BadJson, parse_json
from weights.resolve import file_in
from weights.sentence_modules import STATIC_WEIGHTS, Side, side_modules
from weights.token_weights import read_vector

_TOKENIZER_PARTS = ("model", "added_tokens", "normalizer", "pre_tokenizer")
"""Members of `tokenizer.json` that decide the token ids of a text, not counting special tokens around it."""


class QueryWeightsError(ValueError):
    """The token weights of queries cannot be used. The message is one line and names files without directories."""


@dataclass(frozen=True)
class QueryWeights:
    """Stored token weights for queries.

    weights: [vocab_size], float32; weight of each token id.
    sides: roles of texts (`query`, `document`) that are embedded with the weights. None in it means texts without a
        role.
    """

    weights: NDArray[np.float32]
    sides: frozenset[Side | None]

    def vector(self, token_ids: Iterable[int]) -> tuple[list[int], NDArray[np.float32]]:
        """Return the sparse vector of a text: its token ids with a nonzero weight, ascending, and their weights."""
        ids = np.unique(np.fromiter(token_ids, dtype=np.int64))
        ids = ids[self.weights[ids] != 0]
        return ids.tolist(), self.weights[ids]


def query_weights(directory: Path, vocab_size: int) -> QueryWeights | None:
    """Read the token weights of a checkpoint; None for a checkpoint without such weights.

    vocab_size: size of the tokenizer's vocabulary. Raises QueryWeightsError for fewer weights, and for a tokenizer of
    queries that differs from the tokenizer of documents; ResolveError for a link out of the directory.
    """
    folders: dict[Side | None, str] = {}
    sides: tuple[Side | None, ...] = (None, "query")
    for side in sides:
        modules = side_modules(directory, side)
        if [kind for kind, _ in modules] == [STATIC_WEIGHTS]:
            folders[side] = modules[0][1]
    if not folders:
        return None
    folder = folders.get("query", next(iter(folders.values())))
    weights = read_vector(directory, f"{folder}/model.safetensors", "weight")
    if len(weights) < vocab_size:
        raise QueryWeightsError(
            f"'{folder}' has {len(weights):,} weights for a vocabulary of {vocab_size:,} tokens, but needs one for each"
        )
    _check_tokenizer(directory, folder)
    return QueryWeights(weights, frozenset(folders))


def _check_tokenizer(directory: Path, folder: str) -> None:
    """Raise QueryWeightsError if the tokenizer for queries differs from the tokenizer for documents, or is damaged.

    folder: folder of the query encoder in the checkpoint.
    """
    own, other = file_in(directory, f"{folder}/tokenizer.json"), file_in(directory, "tokenizer.json")
    if own is None or other is None:
        return
    try:
        first, second = parse_json(own), parse_json(other)
        if any(first.get(part) != second.get(part) for part in _TOKENIZER_PARTS):
            raise QueryWeightsError(f"'{folder}': its tokenizer differs from that of documents, which is not supported")
    except (BadJson, AttributeError):
        raise QueryWeightsError(f"'{folder}/tokenizer.json' is damaged") from None
