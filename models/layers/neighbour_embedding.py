"""Embedding whose token part is computed from the token and its two neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from models.config import EmbeddingConfig, NeighbourEmbeddingConfig
from models.layers.embeddings import Embedding, EmbeddingTable
from models.layers.linear import Linear


class NeighbourEmbedding(Embedding):
    """Embedding that projects the rows of the next token, of the token and of the token before it.

    neighbours: the projection, [hidden, 3 * token_width], with a bias.
    Source: Sun et al. 2020, arXiv:2004.02984, section 3.3, by the published code.
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
        """The token part of the sum. positions: [tokens], int64, 0 at the start of a text."""
        rows, is_first = self.tokens(token_ids), (positions == 0)[:, None]
        before = rows.roll(1, 0).masked_fill(is_first, 0.0)
        after = rows.roll(-1, 0).masked_fill(is_first.roll(-1, 0), 0.0)
        vectors: Tensor = self.neighbours(torch.cat([after, rows, before], 1))
        return vectors
