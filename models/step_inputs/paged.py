"""Step inputs for the next tokens of rows, whose earlier keys and values are in a paged cache."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import cached_property

from torch import Tensor

from models.attention_metadata import AttentionMetadata
from models.backends import interface as ops
from models.batch import DecoderBatch
from models.config import StackConfig
from models.kv_cache import KVCache
from models.layers.attention import Attention
from models.layers.mixer import Mixer, Projections
from models.layers.positions import PositionEncodings
from models.state_memory import StateMemory
from models.state_steps import SteppedTokens, Wave, plan_waves, run_waves
from models.step_inputs.base import AttentionPattern, KeysValues, StepInputs, StepKind


class PagedStepInputs(StepInputs):
    """Inputs for the next tokens of rows. Their keys and values are written to the cache, then all queries attend.

    cross_cache: keys and values of the encoder output of each row, already written; or None.
    state_memory: states of the mixers; None for a stack without mixers.
    config: configuration of the stack.
    """

    kind: StepKind | None = "paged"

    def __init__(
        self,
        batch: DecoderBatch,
        cache: KVCache,
        cross_cache: KVCache | None,
        encodings: PositionEncodings,
        config: StackConfig,
        state_memory: StateMemory | None = None,
    ) -> None:
        output_rows = None if batch.output_lens is None else batch.output_rows
        super().__init__(encodings, output_rows, len(config.layers), batch.adapters)
        self._cache_layers = config.cache_layers
        self._batch, self._cache, self._cross_cache, self._state_memory = batch, cache, cross_cache, state_memory
        self.has_int8_cache = cache.is_int8
        self.static_inputs = (cache.addresses["self"],)
        if cross_cache is not None:
            self.static_inputs += (cross_cache.addresses["cross"],)
        if state_memory is not None:
            self.static_inputs += (state_memory.addresses,)
            if self._single_steps is None:
                self.kind = None

    def dynamic_inputs(self, patterns: Iterable[AttentionPattern]) -> dict[Hashable, int]:
        inputs = super().dynamic_inputs(patterns)
        inputs["slots"] = self._batch.slot_mapping.data_ptr()
        if self._state_memory is not None:
            steps = self._single_steps
            assert steps is not None, "a program runs one generated token of each row"
            inputs["state slots"] = steps.slots.data_ptr()
            for layer in self._state_memory.states:
                self._state_memory.start(layer, self._waves[0].starts)
        return inputs

    def _make_metadata(self, pattern: AttentionPattern) -> AttentionMetadata:
        batch, query_lens = self._batch, self._batch.query_lens
        if pattern.output_rows_only:
            assert batch.output_lens is not None
            query_lens = batch.output_lens
        if pattern.cross:
            assert self._cross_cache is not None
            tables, size = batch.source_block_tables, self._cross_cache.block_size
            return AttentionMetadata(query_lens, batch.source_lens, block_tables=tables, block_size=size)
        return AttentionMetadata(
            query_lens,
            batch.key_lens,
            pattern.causal,
            pattern.window,
            self._score_bias,
            batch.block_tables,
            self._cache.block_size,
            chunk=pattern.chunk,
        )

    def _attend(
        self, layer: int, attention: Attention, query: Tensor, own: KeysValues | None, metadata: AttentionMetadata
    ) -> Tensor:
        index, config = self._cache_layers[layer], attention.config
        if own is not None:
            self._cache.write(index, self._batch.slot_mapping, *own)
        keys, values = self._cache.keys[index], self._cache.values[index]
        return ops.paged_attention(query, keys, values, metadata, config.scale, config.score_cap, attention.sink_scores)

    def _attend_source(self, layer: int, attention: Attention, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        assert self._cross_cache is not None, "cross-attention needs the encoder's keys and values"
        keys, values = self._cross_cache.keys[layer], self._cross_cache.values[layer]
        return ops.paged_attention(query, keys, values, metadata, attention.config.scale, attention.config.score_cap)

    def _mix(self, layer: int, mixer: Mixer, projections: Projections) -> Tensor:
        assert self._state_memory is not None, "a mixer needs a state memory"
        return run_waves(layer, mixer, projections, self._state_memory, self._waves)

    @cached_property
    def _waves(self) -> tuple[Wave, ...]:
        return plan_waves(self._batch)

    @cached_property
    def _single_steps(self) -> SteppedTokens | None:
        """The tokens of a step whose rows have one generated token each, in the order of the rows; None for others."""
        if len(self._waves) != 1 or self._waves[0].chunked or len(self._waves[0].stepped) != 1:
            return None
        return self._waves[0].stepped[0]
