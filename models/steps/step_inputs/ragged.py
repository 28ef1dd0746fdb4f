"""Step inputs for whole sequences. Nothing is cached."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.choice import backend
from models.config import AttentionConfig
from models.layers.attention import Attention
from models.layers.full_sequence_attention import FullSequenceAttention
from models.layers.joint_attention import JointAttention
from models.layers.mixer import Mixer, Projections
from models.layers.positions import PositionEncodings
from models.steps.batch import AudioBatch, EncoderBatch, SourceBatch
from models.steps.state_steps import run_whole
from models.steps.step_inputs.base import AttentionPattern, KeysValues, StepInputs, StepKind
from models.steps.step_inputs.shared_keys import SharedKeys


class SourceStates(NamedTuple):
    """Encoder output of a batch. hidden: [source tokens, hidden]. lengths: number of source tokens of each sequence."""

    hidden: Tensor
    lengths: tuple[int, ...]


class RaggedStepInputs(StepInputs):
    """Step inputs for whole sequences that lie one after the other. No cache is used.

    dtype: dtype of the hidden states.
    source: encoder output for cross-attention, or None.
    key_value_layers: indices of layers whose keys and values later layers read.
    needs_all_rows: whether the last layer must compute all rows even if few outputs are needed.
    """

    kind: StepKind | None = "ragged"

    def __init__(
        self,
        batch: SourceBatch,
        encodings: PositionEncodings,
        num_layers: int,
        dtype: torch.dtype,
        source: SourceStates | None = None,
        key_value_layers: frozenset[int] = frozenset(),
        needs_all_rows: bool = False,
    ) -> None:
        self._batch = batch
        self._texts = batch if isinstance(batch, EncoderBatch) else None
        output_rows = None if self._texts is None else self._texts.output_rows
        super().__init__(encodings, output_rows, num_layers, batch.adapters, needs_all_rows)
        self._lengths, self._dtype = batch.lengths, dtype
        self._source, self._encodings = source, encodings
        self._full_plans: dict[AttentionConfig, Any] = {}
        self._shared_keys = SharedKeys(key_value_layers)

    @property
    def lengths(self) -> tuple[int, ...]:
        return self._lengths

    def self_attention(self, layer: int, attention: Attention, hidden: Tensor) -> Tensor:
        if not isinstance(attention, FullSequenceAttention):
            return super().self_attention(layer, attention, hidden)
        assert self._texts is None or self._texts.attended is None, "attention over full sequences attends to all"
        if attention.config not in self._full_plans:
            assert not isinstance(self._batch, AudioBatch), "attention over full sequences reads text or samples"
            self._full_plans[attention.config] = attention.make_plan(self._batch, self._encodings, self._dtype)
        plan = self._full_plans[attention.config]
        return self.select_rows(layer, attention(hidden, self.rotations, plan))

    def _make_metadata(self, pattern: AttentionPattern) -> AttentionMetadata:
        query_lens, query_starts = self.lengths, None
        if pattern.output_rows_only:
            assert self._texts is not None
            query_lens, query_starts = (1,) * len(self.lengths), self._texts.output_positions
        if pattern.cross:
            assert self._source is not None
            return AttentionMetadata(query_lens, self._source.lengths)
        key_lens, key_starts = self.lengths, None
        if self._texts is not None and self._texts.attended is not None:
            assert not pattern.causal, "only tokens that see all tokens can leave some of them out"
            key_lens, key_starts = self._texts.attended, self._texts.offsets[:-1]
            query_starts = query_starts or (0,) * len(key_lens)
        return AttentionMetadata(
            query_lens,
            key_lens,
            pattern.causal,
            pattern.window,
            score_bias=self._score_bias,
            query_starts=query_starts,
            chunk=pattern.chunk,
            key_starts=key_starts,
        )

    def _attend(
        self, layer: int, attention: Attention, query: Tensor, own: KeysValues | None, metadata: AttentionMetadata
    ) -> Tensor:
        key, value = self._shared_keys.of(layer, attention, own)
        config = attention.config
        if isinstance(attention, JointAttention):
            assert self._source is not None, "joint attention needs the encoder output"
            source = attention.source_keys_values(self._source.hidden)
            of_source = self._metadata_of(self._pattern(layer, cross=True))
            return attention.attend(query, [(key, value, metadata), (*source, of_source)])
        return backend(query).ragged_attention(
            query, key, value, metadata, config.scale, config.score_cap, attention.sink_scores
        )

    def _attend_source(self, layer: int, attention: Attention, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        assert self._source is not None, "cross-attention needs the encoder output"
        key, value = attention.source_keys_values(self._source.hidden)
        return backend(query).ragged_attention(
            query, key, value, metadata, attention.config.scale, attention.config.score_cap
        )

    def _mix(self, layer: int, mixer: Mixer, projections: Projections) -> Tensor:
        return run_whole(mixer, projections, self.lengths)
