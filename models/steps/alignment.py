"""Compute the cross-attention weights of generated texts, in a separate forward pass.

For a translation: the weights of the last layer, averaged over its heads. Bahdanau et al. 2015 (arXiv:1409.0473, figure
3) show such weights for a model with one layer and one head.

For speech: the weights of selected heads, normalised over the tokens and smoothed over time. The monotonic path with
the largest sum of weights gives the time of each token. Source: the code published with Radford et al. 2022,
arXiv:2212.04356 (`timing.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends.attention_metadata import AttentionMetadata
from models.backends.choice import backend
from models.layers.attention import Attention
from models.layers.positions import PositionEncodings
from models.steps.batch import EncoderBatch
from models.steps.kv_cache import KVCache
from models.steps.step_inputs.base import AttentionPattern
from models.steps.step_inputs.ragged import RaggedStepInputs, SourceStates


class WeightsComplete(Exception):
    """All weights are known. Ends a forward pass, because nothing reads the outputs of the later layers."""


class AlignmentStepInputs(RaggedStepInputs):
    """Step inputs for whole texts that store the cross-attention weights of the last layer.

    The forward pass ends with WeightsComplete.

    weights: for each text, [tokens, source tokens], float32: the mean over the heads; each row adds up to 1.
    """

    kind = None

    def __init__(
        self,
        batch: EncoderBatch,
        encodings: PositionEncodings,
        num_layers: int,
        dtype: torch.dtype,
        source: SourceStates,
    ) -> None:
        super().__init__(batch, encodings, num_layers, dtype, source)
        self._last_layer, self._sources = num_layers - 1, source
        self.weights: list[Tensor] = []

    def _attend_source(self, layer: int, attention: Attention, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        if layer < self._last_layer:
            return super()._attend_source(layer, attention, query, metadata)
        key, _ = attention.source_keys_values(self._sources.hidden)
        queries = torch.split(_scaled_queries(attention, query), list(self.lengths), dim=1)
        keys = torch.split(_keys_of_heads(attention, key), list(self._sources.lengths), dim=2)
        self.weights = [_weights(attention, *text).mean(0) for text in zip(queries, keys, strict=True)]
        raise WeightsComplete


class CachedAlignmentStepInputs(RaggedStepInputs):
    """Step inputs for one whole text that store the cross-attention weights of selected heads.

    The keys and values of the source are in a cache. The forward pass ends with WeightsComplete.

    slots: [source tokens], int64, slots of the source in the cache.
    heads: (layer, head) of each selected head.
    weights: [tokens, source tokens], float32, for each selected head; each row adds up to 1.
    """

    kind = None

    def __init__(
        self,
        batch: EncoderBatch,
        encodings: PositionEncodings,
        num_layers: int,
        dtype: torch.dtype,
        cross_cache: KVCache,
        slots: Tensor,
        heads: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__(batch, encodings, num_layers, dtype)
        self._cache, self._slots = cross_cache, slots
        self._heads = frozenset(heads)
        self.weights: dict[tuple[int, int], Tensor] = {}

    def _make_metadata(self, pattern: AttentionPattern) -> AttentionMetadata:
        if pattern.cross:
            return AttentionMetadata(self.lengths, (len(self._slots),))
        return super()._make_metadata(pattern)

    def _attend_source(self, layer: int, attention: Attention, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        key, value = self._cache.read(layer, self._slots, query.dtype)
        chosen = [head for own, head in self._heads if own == layer]
        if chosen:
            weights = _weights(attention, _scaled_queries(attention, query), _keys_of_heads(attention, key))
            self.weights |= {(layer, head): weights[head] for head in chosen}
        if len(self.weights) == len(self._heads):
            raise WeightsComplete
        return backend(query).ragged_attention(
            query, key, value, metadata, attention.config.scale, attention.config.score_cap
        )


def _scaled_queries(attention: Attention, query: Tensor) -> Tensor:
    """Return [heads, tokens, head_dim], float32, multiplied by the scale. query: [tokens, heads, head_dim]."""
    return (query.float() * attention.config.scale).transpose(0, 1)


def _keys_of_heads(attention: Attention, key: Tensor) -> Tensor:
    """Return [heads, head_dim, source tokens], float32. key: [source tokens, kv_heads, head_dim]."""
    repeats = attention.config.num_heads // attention.config.num_kv_heads
    keys = key.float().permute(1, 2, 0)
    return keys.repeat_interleave(repeats, dim=0) if repeats > 1 else keys


def _weights(attention: Attention, queries: Tensor, keys: Tensor) -> Tensor:
    """Compute the attention weights of all heads for one text: [heads, tokens, source tokens], float32.

    queries: [heads, tokens, head_dim], scaled. keys: [heads, head_dim, source tokens].
    """
    scores = queries @ keys
    cap = attention.config.score_cap
    return (scores if cap is None else cap * (scores / cap).tanh()).softmax(-1)


def normalise_alignment(weights: Tensor, median_width: int) -> Tensor:
    """Standardise weights over the tokens, smooth them over time, and average them over the heads.

    weights: [heads, tokens, source tokens], float32.
    median_width: width of the median filter, odd. Sources of at most half this width are not smoothed.
    Returns [tokens, source tokens], float32; NaN where all tokens have the same weight, as for a single token.
    """
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    scaled = (weights - mean) / deviation
    margin = median_width // 2
    if 0 < margin < scaled.shape[-1]:
        padded = F.pad(scaled, (margin, margin), mode="reflect")
        scaled = padded.unfold(-1, median_width, 1).sort()[0][..., margin]
    return scaled.mean(0)
