"""Token types that a model takes from its tokens and not from a tokenizer. Beside `models.layers.embeddings`."""

from __future__ import annotations

import torch
from torch import Tensor

from models.config import QuestionTypesEmbeddingConfig
from models.layers.embeddings import Embedding, EmbeddingTable


class QuestionTypesEmbedding(Embedding):
    """An embedding whose types are 0 up to a text's first separator and 1 after it, or all 0 without a separator to
    look for. A text that lacks it is typed as if it began with it, as the reference does."""

    def __init__(
        self, config: QuestionTypesEmbeddingConfig, hidden_size: int, tokens: EmbeddingTable | None = None
    ) -> None:
        super().__init__(config, hidden_size, tokens)
        self.separator_id = config.separator_id

    def forward(self, token_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        return super().forward(token_ids, positions, self._types(token_ids, positions))

    def _types(self, token_ids: Tensor, positions: Tensor) -> Tensor | None:
        """[tokens], int64. positions: 0 where a text begins."""
        if self.separator_id is None:
            return None
        ends = (token_ids == self.separator_id).long()
        texts = (positions == 0).cumsum(0) - 1
        in_text = torch.zeros_like(ends).index_add_(0, texts, ends)
        # Separators in the text before a token: those before it in the batch, less those in the texts before its own.
        before = ends.cumsum(0) - ends - (in_text.cumsum(0) - in_text)[texts]
        return torch.where(in_text[texts] > 0, before > 0, positions > 0).long()
