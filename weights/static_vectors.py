"""Read the table of token vectors of a Model2Vec checkpoint, which may be stored as shared vectors and token weights.

A checkpoint with a quantized vocabulary has `embeddings` [vectors, width], `mapping` [tokens] and `weights` [tokens]:
the vector of token i is `embeddings[mapping[i]] * weights[i]`. Source: https://github.com/MinishLab/model2vec.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from weights.errors import WeightsError
from weights.stored import Stored, StoredTensor

TABLE = "embedding.weight"
"""Name of the table of token vectors: in checkpoints of sentence-transformers, and for the table that is made here."""
MAX_NUMBERS = 1 << 31
"""Largest number of elements in a table that is made from a mapping. The largest published table has 128 million."""


class StaticVectors:
    """Presents the tensors of a Model2Vec checkpoint as one table. Implements `QuantizedFormat`.

    Checkpoints of sentence-transformers have such a table already, and are left unchanged.
    """

    description = ""
    unused = ""

    def matrices(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Stored]:
        """Replace `embeddings`, `mapping` and `weights` by the table. The last two may be absent.

        Raises WeightsError for shapes that do not fit together and for a table above `MAX_NUMBERS`. Reading the table
        raises WeightsError for a mapping to a vector that does not exist.
        """
        rest: dict[str, Stored] = {
            name: tensor for name, tensor in stored.items() if name not in ("embeddings", "mapping", "weights")
        }
        vectors, mapping, weights = (stored.get(name) for name in ("embeddings", "mapping", "weights"))
        if vectors is None or TABLE in stored:
            return stored
        lengths = {part.shape[0] for part in (mapping, weights) if part is not None and len(part.shape) == 1}
        parts = [part for part in (mapping, weights) if part is not None]
        rows = lengths.pop() if lengths else vectors.shape[0]
        if len(vectors.shape) != 2 or lengths or any(part.shape != (rows,) for part in parts):
            raise WeightsError("the tensors 'embeddings', 'mapping' and 'weights' have shapes that do not fit together")
        if mapping is None and rows != vectors.shape[0]:
            raise WeightsError(f"'weights' has {rows:,} numbers for {vectors.shape[0]:,} vectors, without a 'mapping'")
        if rows * vectors.shape[1] > MAX_NUMBERS:
            raise WeightsError(f"'mapping' makes a table of more than {MAX_NUMBERS:,} numbers")

        def read() -> Tensor:
            table = vectors.read().float()
            if mapping is not None:
                index = mapping.read().long()
                if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < len(table):
                    raise WeightsError(f"'mapping' has numbers outside of the {len(table):,} vectors")
                table = table[index]
            return table if weights is None else table * weights.read().float()[:, None]

        return {**rest, TABLE: StoredTensor((rows, vectors.shape[1]), torch.float32, vectors.file, read)}
