"""Weights of the tokens of a query, which need no model: inference-free SPLADE.

Documents go through a masked language model; the sparse vector of a query has one stored weight for each of its tokens.
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
"""Parts of `tokenizer.json` that decide the ids of a text without the tokens around it."""


class QueryWeightsError(ValueError):
    """The weights of queries cannot be read. The message is one line and names files without directories."""


@dataclass(frozen=True)
class QueryWeights:
    """Weights of the tokens of a query.

    weights: [vocabulary], float32.
    sides: roles of a text that are weighted so; None is a text without one.
    """

    weights: NDArray[np.float32]
    sides: frozenset[Side | None]

    def vector(self, token_ids: Iterable[int]) -> tuple[list[int], NDArray[np.float32]]:
        """Vocabulary entries with a weight, ascending, and their weights."""
        ids = np.unique(np.fromiter(token_ids, dtype=np.int64))
        ids = ids[self.weights[ids] != 0]
        return ids.tolist(), self.weights[ids]


def query_weights(directory: Path, vocab_size: int) -> QueryWeights | None:
    """The weights of a checkpoint whose queries have them; None for another checkpoint.

    vocab_size: size of the tokenizer's vocabulary. Raises QueryWeightsError or ResolveError, one line.
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
    """Raise QueryWeightsError if the tokenizer of queries differs from the tokenizer of documents."""
    own, other = file_in(directory, f"{folder}/tokenizer.json"), file_in(directory, "tokenizer.json")
    if own is None or other is None:
        return
    try:
        first, second = parse_json(own), parse_json(other)
        if any(first.get(part) != second.get(part) for part in _TOKENIZER_PARTS):
            raise QueryWeightsError(f"'{folder}': its tokenizer differs from that of documents, which is not supported")
    except (BadJson, AttributeError):
        raise QueryWeightsError(f"'{folder}/tokenizer.json' is damaged") from None
