"""Which words of a source text each word of an answer looked at: cross-attention, read off in a pass of its own.

Of the last layer, averaged over its heads, as Bahdanau et al. 2015 (arXiv:1409.0473, figure 3) draw it for one of each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.attention_metadata import AttentionPlan
from models.layers.attention import Attention
from models.step_inputs import PackedStep


class AligningStep(PackedStep):
    """One text through a decoder, whole, beside what its tokens' cross-attention looks at.

    weights: what the last layer looked at, there when it has run: [tokens, source tokens], float32; each row adds up to
    one.
    """

    recorded_as = None
    weights: Tensor

    def _attend_source(self, layer: int, attention: Attention, query: Tensor, plan: AttentionPlan) -> Tensor:
        assert self._source is not None
        key, _ = attention.keys_values(self._source.hidden, {})
        heads, kv_heads = attention.config.num_heads, attention.config.num_kv_heads
        key = key.repeat_interleave(heads // kv_heads, dim=1)
        scores = torch.einsum("thd,shd->hts", query.float(), key.float()) * attention.config.scale
        self.weights = scores.softmax(-1).mean(0)
        return super()._attend_source(layer, attention, query, plan)
