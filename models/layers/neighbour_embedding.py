"""Embedding that computes the vector of a token from the token and its two neighbours (MobileBERT)."""

from __future__ import annotations

import torch
from torch import Tensor

from models.config import EmbeddingConfig, NeighbourEmbeddingConfig
from models.layers.embeddings import Embedding, EmbeddingTable
from models.layers.linear import Linear


class NeighbourEmbedding(Embedding):
    """Embedding that projects three rows of the token table: of the next token, the token and the previous token.

    neighbours: the projection, with weight [hidden, 3 * token_width] and a bias.
    Source: Sun et al. 2020, arXiv:2004.02984, section 3.3, and the published code.
    """

    def __init__(
        self, config: NeighbourEmbeddingConfig, hidden_size: int, tokens: EmbeddingTable | None = None
    ) -> None:
        super().__init__(config, hidden_size, tokens)
        assert config.token_width is not None
        self.neighbours = Linear(3 * config.token_width, hidden_size, bias=True)

    @property
    def _reads_rows(self) -> bool:
        return False

    def _make_tokens(self, config: EmbeddingConfig, hidden_size: int) -> EmbeddingTable:
        assert config.token_width is not None
        return EmbeddingTable(config.vocab_size, config.token_width)

    def _token_vectors(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """The projected vectors of the tokens, before positions and token types are added.

        positions: [tokens], int64, 0 at the start of a text. Returns [tokens, hidden], model dtype.
        """
        rows, is_first = self.tokens(token_ids), (positions == 0)[:, None]
        before = rows.roll(1, 0).masked_fill(is_first, 0.0)
        after = rows.roll(-1, 0).masked_fill(is_first.roll(-1, 0), 0.0)
        vectors: Tensor = self.neighbours(torch.cat([after, rows, before], 1))
        return vectors
