"""Step inputs of captured steps: their attention reads rows from the memory of the graph."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.cuda.attention_view import CudaAttentionView
from models.layers.positions import PositionEncodings
from models.stack import Stack
from models.steps.batch import DecoderBatch, SourceBatch
from models.steps.kv_cache import KVCache
from models.steps.step_inputs.base import AttentionPattern, PagedStepInputs
from models.steps.step_inputs.ragged import RaggedStepInputs


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
        cache: KVCache,
        cross_cache: KVCache | None,
        encodings: PositionEncodings,
        stack: Stack,
        views: tuple[CudaAttentionView, ...],
    ) -> None:
        super().__init__(batch, cache, cross_cache, encodings, stack.config)
        self._views = views

    def _make_metadata(self, pattern: AttentionPattern) -> AttentionMetadata:
        metadata = super()._make_metadata(pattern)
        metadata.set_view(self._views[1 if pattern.cross else 0])
        return metadata


class GraphTextInputs(RaggedStepInputs):
    """Step inputs of a captured step of whole texts or recordings.

    batch: its lengths add up to the tokens of the step. They are not those of the texts.
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
