"""Embedding in which one token has a separate vector instead of a row of the token table (T5Gemma 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from models.config import OwnVectorEmbeddingConfig
from models.layers.embeddings import Embedding, EmbeddingTable
from models.layers.linear import parameter


class OwnVectorEmbedding(Embedding):
    """Embedding in which one token has a separate vector, which replaces its scaled row of the token table.

    own_vector: [hidden], model dtype.
    """

    def __init__(
        self, config: OwnVectorEmbeddingConfig, hidden_size: int, tokens: EmbeddingTable | None = None
    ) -> None:
        super().__init__(config, hidden_size, tokens)
        self._token_id = config.token_id
        self.own_vector = parameter(hidden_size)

    @property
    def _reads_rows(self) -> bool:
        return False

    def _token_vectors(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        vectors = super()._token_vectors(token_ids, positions)
        return torch.where((token_ids == self._token_id)[:, None], self.own_vector.to(vectors.dtype), vectors)
