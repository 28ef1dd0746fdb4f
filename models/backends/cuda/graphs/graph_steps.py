"""A decoder whose steps are captured, and step inputs whose attention reads rows from the memory of a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.cuda.attention_view import CudaAttentionView
from models.backends.cuda.graphs.graph_sizes import GraphSizes
from models.layers.positions import PositionEncodings
from models.stack import Stack
from models.steps.batch import DecoderBatch, SourceBatch
from models.steps.kv_cache import KVCache
from models.steps.step_inputs.base import AttentionPattern, PagedStepInputs
from models.steps.step_inputs.ragged import RaggedStepInputs

Head = Callable[[Tensor, Tensor | None], Tensor]
"""Computes logits from hidden states, in the memory that is its second argument, or in new memory."""


class GraphDecoder(NamedTuple):
    """A decoder whose steps are captured, with the memory that its graphs share.

    stack, head: the decoder, or a draft head.
    logits: [rows or more, vocab], float32, memory for the logits.
    cache, cross_cache: the graphs can run only with these caches; no cross-attention cache without an encoder.
    limits: limits of the steps.
    read_states: [tokens or more, hidden], model dtype, memory for the hidden states that a draft head reads; None for a
        decoder that is no draft head.
    """

    stack: Stack
    head: Head
    logits: Tensor
    cache: KVCache
    cross_cache: KVCache | None
    limits: GraphSizes
    read_states: Tensor | None = None

    @property
    def caches(self) -> list[tuple[KVCache, int]]:
        """Each cache, with the largest number of keys that a row has in it."""
        own = [(self.cache, self.limits.context)]
        return own if self.cross_cache is None else [*own, (self.cross_cache, self.limits.source)]

    @property
    def table_widths(self) -> tuple[int, ...]:
        """Largest number of blocks of a row in each cache."""
        return tuple(min(-(-length // cache.block_size), cache.num_blocks) for cache, length in self.caches)

    def memory_for_states(self, tokens: int) -> Tensor | None:
        """Memory in which steps keep hidden states for a draft head: [tokens, width]. None if they keep none.

        tokens: largest number of tokens of a step.
        """
        if not self.limits.keeps_states:
            return None
        width, like = self.stack.hidden_size * max(len(self.stack.taps), 1), self.stack.tokens.weight
        return torch.zeros(tokens, width, dtype=like.dtype, device=self.cache.device)


class GraphPositions:
    """Position encodings of the captured steps of a stack.

    Graphs read the tables of positions where they are, so these are made once.

    length: largest number of tokens of a text.
    """

    def __init__(self, stack: Stack, length: int) -> None:
        self._stack, self._length = stack, length
        self._bias = stack.bias(length)
        if isinstance(self._bias, Tensor):
            self._bias = self._bias.float().contiguous()

    def before_capture(self, positions: Tensor) -> PositionEncodings:
        """The part of the encodings that is made before a capture. positions: [tokens], int64, memory of the graph."""
        return replace(self._stack.encodings(positions, self._length), score_bias=self._bias)

    def in_capture(self, encodings: PositionEncodings, positions: Tensor) -> PositionEncodings:
        """The encodings of a step, to be called in a captured function. encodings: result of `before_capture`."""
        return replace(encodings, query_scales=self._stack.query_scales(positions))


class GraphPagedInputs(PagedStepInputs):
    """Step inputs of a captured step of a decoder.

    views: attention view of the cache, and of the cross-attention cache if there is one, in the graph's memory.
    """

    def __init__(
        self,
        batch: DecoderBatch,
        decoder: GraphDecoder,
        encodings: PositionEncodings,
        views: tuple[CudaAttentionView, ...],
    ) -> None:
        super().__init__(batch, decoder.cache, decoder.cross_cache, encodings, decoder.stack.config)
        self._stack, self._views = decoder.stack, views
        if decoder.read_states is not None:
            self.draft_states = decoder.read_states[: len(batch.token_ids)]

    def run(self, token_ids: Tensor, positions: Tensor, kept_states: Tensor | None) -> Tensor:
        """Compute the final hidden states of all tokens: [tokens, hidden]. To be called in a captured function.

        token_ids, positions: [tokens], int64.
        kept_states: memory for the hidden states that a draft head reads (`GraphDecoder.memory_for_states`), or None.
        """
        hidden = self._stack.run_layers(self._stack.embed(token_ids, positions, self), self)
        if kept_states is not None:
            kept_states[: len(hidden)].copy_(self.tapped() if self.taps else hidden)
        return hidden

    def _make_metadata(self, pattern: AttentionPattern) -> AttentionMetadata:
        metadata = super()._make_metadata(pattern)
        metadata.set_view(self._views[1 if pattern.cross else 0])
        return metadata


class GraphTextInputs(RaggedStepInputs):
    """Step inputs of a captured step of whole texts or recordings.

    batch: its lengths add up to the tokens of the step. They are not the lengths of the texts, which differ between
        replays.
    view: attention view in the graph's memory.
    """

    def __init__(
        self,
        batch: SourceBatch,
        encodings: PositionEncodings,
        stack: Stack,
        dtype: torch.dtype,
        view: CudaAttentionView,
    ) -> None:
        super().__init__(batch, encodings, len(stack.layers), dtype, None, stack.config.key_value_layers)
        self._view = view

    @property
    def lengths(self) -> tuple[int, ...]:
        raise AssertionError("the lengths of the texts of a captured step change; a layer that needs them must say so")

    def _make_metadata(self, pattern: AttentionPattern) -> AttentionMetadata:
        metadata = AttentionMetadata(
            self._lengths, self._lengths, pattern.causal, pattern.window, self._score_bias, chunk=pattern.chunk
        )
        metadata.set_view(self._view)
        return metadata
