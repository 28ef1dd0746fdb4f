"""Embedding that computes token types from the token ids instead of taking them from the tokenizer."""

from __future__ import annotations

import torch
from torch import Tensor

from models.config import QuestionTypesEmbeddingConfig
from models.layers.embeddings import Embedding, EmbeddingTable


class QuestionTypesEmbedding(Embedding):
    """Embedding in which tokens up to the first separator of a sequence have type 0, and later tokens type 1.

    In a sequence without a separator, the first token has type 0 and all others type 1, as in transformers.
    Without a configured separator, all types are 0.
    """

    def __init__(
        self, config: QuestionTypesEmbeddingConfig, hidden_size: int, tokens: EmbeddingTable | None = None
    ) -> None:
        super().__init__(config, hidden_size, tokens)
        self.separator_id = config.separator_id

    def forward(self, token_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        return super().forward(token_ids, positions, self._types(token_ids, positions))

    def _types(self, token_ids: Tensor, positions: Tensor) -> Tensor | None:
        """Compute the token types: [tokens], int64; None if all are 0.

        positions: [tokens], int64, 0 at the start of a sequence.
        """
        if self.separator_id is None:
            return None
        is_separator = (token_ids == self.separator_id).long()
        sequences = (positions == 0).cumsum(0) - 1
        counts = torch.zeros_like(is_separator).index_add_(0, sequences, is_separator)
        # Separators before a token in its own sequence: all before it, minus those in earlier sequences.
        before = is_separator.cumsum(0) - is_separator - (counts.cumsum(0) - counts)[sequences]
        return torch.where(counts[sequences] > 0, before > 0, positions > 0).long()
