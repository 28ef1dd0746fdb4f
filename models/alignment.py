"""Compute the cross-attention weights of a translation, in a separate forward pass.

The weights are those of the last layer, averaged over its heads. Bahdanau et al. 2015 (arXiv:1409.0473, figure 3) show
such weights for a model with one layer and one head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.attention_metadata import AttentionMetadata
from models.layers.attention import Attention
from models.step_inputs import RaggedStepInputs


class AlignmentStepInputs(RaggedStepInputs):
    """Step inputs for one whole text that also store the cross-attention weights of the last layer.

    weights: [tokens, source tokens], float32; each row adds up to 1. Set when the last layer has run.
    """

    kind = None
    weights: Tensor

    def _attend_source(self, layer: int, attention: Attention, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        assert self._source is not None
        key, _ = attention.keys_values(self._source.hidden, {})
        heads, kv_heads = attention.config.num_heads, attention.config.num_kv_heads
        key = key.repeat_interleave(heads // kv_heads, dim=1)
        scores = torch.einsum("thd,shd->hts", query.float(), key.float()) * attention.config.scale
        cap = attention.config.score_cap
        scores = scores if cap is None else cap * (scores / cap).tanh()
        self.weights = scores.softmax(-1).mean(0)
        return super()._attend_source(layer, attention, query, metadata)
