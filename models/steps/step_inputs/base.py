"""The base class of all step inputs, and the step inputs for the next tokens of rows in a paged cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from models.backends import choice
from models.backends.attention_metadata import AttentionMetadata, bias_float32
from models.backends.choice import backend
from models.backends.cpu.attention_view import CpuAttentionView
from models.backends.cpu.programs import inputs
from models.backends.cpu.programs.inputs import InputValues, ProgramInput
from models.backends.operands import CacheSlots
from models.backends.rounded_slots import RoundedSlots
from models.config import RopeConfig, StackConfig
from models.layers.attention import Attention
from models.layers.joint_attention import JointAttention
from models.layers.mixer import Mixer, Projections
from models.layers.positions import PositionEncodings, Rotation
from models.steps.batch import DecoderBatch
from models.steps.kv_cache import KVCache
from models.steps.state_memory import StateMemory
from models.steps.state_steps import SteppedTokens, Wave, plan_waves, run_waves

StepKind = Literal["ragged", "paged"]


KeysValues = tuple[Tensor, Tensor]
"""Keys and values of some tokens: [tokens, kv_heads, head_dim] each."""


class AttentionPattern(NamedTuple):
    """Which keys each query attends to.

    causal: whether queries see no later keys.
    window: a query sees its own position and the `window - 1` before it; if not causal, also the `window - 1` after it.
        None for no limit.
    cross: whether keys come from the encoder output.
    output_rows_only: whether queries are restricted to the rows whose outputs the caller needs.
    chunk: number of positions in a chunk. Queries see only the keys of their chunk. None for no chunks.
    """

    causal: bool = False
    window: int | None = None
    cross: bool = False
    output_rows_only: bool = False
    chunk: int | None = None


class TapShape(NamedTuple):
    """The layer inputs that a step keeps for a draft head: number of layers, width of a vector, and dtype."""

    num_layers: int
    width: int
    dtype: torch.dtype


class StepInputs(ABC):
    """Everything a stack's attention needs for one forward pass.

    Only some rows of the last layer may be needed (the last token of each sequence, or a pooled token). The last layer
    then computes keys and values for all rows, and all later operations for the needed rows only. In a step with
    adapters, all layers compute all rows, because the rows of an adapter are indexed in the whole step. Rows that are
    not needed are then dropped after the last layer. This is also done if `StackConfig.needs_all_rows` is true.

    encodings: position encodings of the tokens.
    output_rows: [n], int64, rows whose outputs the caller needs, or None for all.
    adapters: name of each sequence's adapter; empty if no sequence has an adapter.
    layer_inputs: [tokens, layers, width], model dtype, a vector per token and layer; None if layers have no such
        inputs.
    final_positions: [tokens, hidden], model dtype, added to the final hidden states; or None.
    global_vectors: [sequences * vectors, hidden], model dtype, input of the next layer with global vectors; or None.
    draft_states: [tokens, width], model dtype, the hidden states that a draft head reads; None for any other stack.
    token_vectors: [tokens, width], model dtype, vectors of the tokens for the first layer of an EAGLE-3 head; or None.

    kind: "ragged" or "paged" for steps that can run as a program; None for steps that run eagerly.
    has_int8_cache: whether keys and values are cached in int8 (or in fp8, with which no step is a program).
    static_inputs: values of program inputs that do not change between steps; `dynamic_inputs` returns the other values.
    """

    kind: StepKind | None = None
    has_int8_cache = False
    static_inputs: tuple[InputValues, ...] = ()

    def __init__(
        self,
        encodings: PositionEncodings,
        output_rows: Tensor | None,
        num_layers: int,
        adapters: Sequence[str] = (),
        needs_all_rows: bool = False,
    ) -> None:
        self.rotations, self._score_bias, self.output_rows = encodings.rotations, encodings.score_bias, output_rows
        self._query_scales = encodings.query_scales
        self.layer_inputs: Tensor | None = None
        self.global_vectors: Tensor | None = None
        self.final_positions: Tensor | None = None
        self.draft_states: Tensor | None = None
        self.token_vectors: Tensor | None = None
        self._selecting_layer = num_layers if adapters or needs_all_rows else num_layers - 1
        if adapters:
            self.kind = None
        self._metadata: dict[AttentionPattern, AttentionMetadata] = {}

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens of each sequence. Only steps of whole sequences have it."""
        raise AssertionError("only a step of whole sequences has their lengths")

    def select_rows(self, layer: int, x: Tensor) -> Tensor:
        """The rows of `x` that a layer computes after its attention: the output rows in the last layer, else all rows.

        layer: index of the layer, or the number of layers for the output of the stack.
        x: [tokens, ...].
        """
        if self.output_rows is None or layer != self._selecting_layer:
            return x
        return backend(x).take_rows(x, self.output_rows)

    def read_draft_states(self, dtype: torch.dtype, width: int) -> Tensor:
        """The hidden states of the target that a draft head reads: [tokens, width]. dtype: dtype of the draft head."""
        assert self.draft_states is not None, "a draft head reads hidden states of the model"
        return self.draft_states

    def tap(self, place: int, x: Tensor) -> None:  # noqa: B027 - steps of whole sequences do nothing
        """Keep the input of a layer for a draft head. Does nothing in steps of whole sequences, which have no drafts.

        place: index of the layer in `Stack.taps`. x: [tokens, hidden].
        """

    def dynamic_inputs(self, patterns: Iterable[AttentionPattern]) -> dict[ProgramInput, int]:
        """Values of the program inputs that differ from step to step: addresses and numbers.

        patterns: the attention patterns that the program uses.
        """
        values: dict[ProgramInput, int] = {}
        for rope, rotation in self.rotations.items():
            own, positions = inputs.rotation(rope), rotation.positions
            values[own.cos], values[own.sin] = rotation.cos_table.data_ptr(), rotation.sin_table.data_ptr()
            values[own.positions] = 0 if positions is None else positions.data_ptr()
        bias = self._bias
        if bias is not None and bias.dim() == 3:
            values |= {inputs.score_bias(layer): layer_bias.data_ptr() for layer, layer_bias in enumerate(bias)}
        elif bias is not None:
            values[inputs.score_bias(None)] = bias.data_ptr()
        values |= {inputs.query_scale(config): factors.data_ptr() for config, factors in self._query_scales.items()}
        for pattern in patterns:
            fields = self._metadata_of(pattern).view(CpuAttentionView).fields
            values.update(zip(inputs.attention(pattern), fields, strict=True))
        if self.draft_states is not None:
            states = self.draft_states
            values[inputs.draft_states(states.dtype, states.shape[1])] = states.data_ptr()
        if self.output_rows is not None:
            values[inputs.OUTPUT_ROWS] = self.output_rows.data_ptr()
            values[inputs.NUM_OUTPUT_ROWS] = self.output_rows.shape[0]
            for rope, rotation in self._output_rotations.items():
                assert rotation.positions is not None
                values[inputs.rotation(rope).output_positions] = rotation.positions.data_ptr()
        return values

    @cached_property
    def _output_rotations(self) -> Mapping[RopeConfig, Rotation]:
        """The rotations of queries and keys for the output rows, by configuration."""
        assert self.output_rows is not None
        return {rope: rotation.select(self.output_rows) for rope, rotation in self.rotations.items()}

    @cached_property
    def _bias(self) -> Tensor | None:
        """The score bias as float32, or None. It is kept in this object, because a program reads it by its address."""
        return bias_float32(self._score_bias)

    def self_attention(self, layer: int, attention: Attention, hidden: Tensor) -> Tensor:
        """Compute the self-attention of a layer, including its projections, within each sequence.

        hidden: [tokens, hidden]. Returns [n, hidden], the rows that `select_rows` selects.
        """
        config = attention.config
        pattern = self._pattern(layer, causal=config.causal, window=config.window, chunk=config.chunk)
        own: KeysValues | None = None
        if config.key_value_layer is not None or (pattern.output_rows_only and attention.separable):
            rotations = self._output_rotations if pattern.output_rows_only else self.rotations
            query = attention.queries(self.select_rows(layer, hidden), rotations)
            if config.key_value_layer is None:
                own = attention.keys_values(hidden, self.rotations)
        elif attention.stores_keys and (store := self._store_of(layer, hidden)) is not None:
            query = self.select_rows(layer, attention.queries_and_store(hidden, self.rotations, store))
        else:
            query, key, value = attention.queries_keys_values(hidden, self.rotations)
            query, own = self.select_rows(layer, query), (key, value)
        if config.query_scale is not None:
            query = backend(query).scale_by_row(query, self.select_rows(layer, self._query_scales[config.query_scale]))
        metadata = self._metadata_of(pattern)
        if isinstance(self._score_bias, Tensor) and self._score_bias.dim() == 3:
            metadata = metadata.with_bias(self._score_bias[layer])
        attended = self._attend(layer, attention, query, own, metadata)
        return attention.project_output(attended, None if attention.gate is None else self.select_rows(layer, hidden))

    def cross_attention(self, layer: int, attention: Attention, hidden: Tensor) -> Tensor:
        """Compute the attention of a layer to the encoder output, including its projections.

        hidden: [n, hidden], the rows that `select_rows` selects. Returns [n, hidden].
        """
        metadata = self._metadata_of(self._pattern(layer, cross=True))
        query = attention.queries(hidden, {})
        return attention.project_output(self._attend_source(layer, attention, query, metadata))

    def mix(self, layer: int, mixer: Mixer, hidden: Tensor) -> Tensor:
        """Run the mixer of a layer, including its projections, within each sequence.

        hidden: [tokens, hidden]. Returns [n, hidden], the rows that `select_rows` selects.
        """
        projections = mixer.project(hidden)
        mixed = self.select_rows(layer, self._mix(layer, mixer, projections))
        return mixer.finish(mixed, tuple(self.select_rows(layer, each) for each in projections))

    def _pattern(
        self,
        layer: int,
        causal: bool = False,
        window: int | None = None,
        cross: bool = False,
        chunk: int | None = None,
    ) -> AttentionPattern:
        output_rows_only = self.output_rows is not None and layer == self._selecting_layer
        return AttentionPattern(causal, window, cross, output_rows_only, chunk)

    def _metadata_of(self, pattern: AttentionPattern) -> AttentionMetadata:
        if pattern not in self._metadata:
            self._metadata[pattern] = self._make_metadata(pattern)
        return self._metadata[pattern]

    @abstractmethod
    def _make_metadata(self, pattern: AttentionPattern) -> AttentionMetadata: ...

    def _store_of(self, layer: int, hidden: Tensor) -> CacheSlots | None:
        """The cache and slots in which `Attention.queries_and_store` stores the keys and values of a layer.

        Returns None if `_attend` stores keys and values instead.

        hidden: [tokens, hidden], input of the layer's attention.
        """
        return None

    @abstractmethod
    def _attend(
        self, layer: int, attention: Attention, query: Tensor, own: KeysValues | None, metadata: AttentionMetadata
    ) -> Tensor:
        """Attend to the keys and values of this step and of earlier steps. Returns [n, heads, head_dim].

        own: keys and values of this step. None if they are stored already, or if the layer attends to the keys and
            values of another layer.
        """

    @abstractmethod
    def _attend_source(
        self, layer: int, attention: Attention, query: Tensor, metadata: AttentionMetadata
    ) -> Tensor: ...

    @abstractmethod
    def _mix(self, layer: int, mixer: Mixer, projections: Projections) -> Tensor:
        """Run the part of a mixer that reads and updates the state. Returns [tokens, width], model dtype.

        projections: results of the mixer's input projections for all tokens.
        """


class PagedStepInputs(StepInputs):
    """Step inputs for the next tokens of rows with a paged cache.

    Each layer first writes the new keys and values to the cache.

    cross_cache: cache with the keys and values of the encoder output, already written; None without an encoder.
    state_memory: states of the mixers; None for a stack without mixers.
    config: configuration of the stack.
    tap_shape: the layer inputs to keep for a draft head; None to keep none.
    taps: these inputs after the step, by their index in `Stack.taps`: [tokens, hidden] each.
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
        tap_shape: TapShape | None = None,
    ) -> None:
        output_rows = None if batch.output_lens is None else batch.output_rows
        super().__init__(encodings, output_rows, len(config.layers), batch.adapters)
        self._cache_layers = config.cache_layers
        self._batch, self._cache, self._cross_cache, self._state_memory = batch, cache, cross_cache, state_memory
        self._tap_shape = tap_shape
        self.taps: dict[int, Tensor] = {}
        self.has_int8_cache = cache.is_rounded
        self.static_inputs = (cache.addresses["self"],)
        if cross_cache is not None:
            self.static_inputs += (cross_cache.addresses["cross"],)
        if state_memory is not None:
            self.static_inputs += (state_memory.addresses,)
            if self._single_steps is None:
                self.kind = None

    def tap(self, place: int, x: Tensor) -> None:
        self.taps[place] = x.clone()

    def tapped(self) -> Tensor:
        """The kept layer inputs after the step, one after the other: [tokens, layers * hidden]."""
        return torch.cat([self.taps[place] for place in range(len(self.taps))], 1)

    def dynamic_inputs(self, patterns: Iterable[AttentionPattern]) -> dict[ProgramInput, int]:
        values = super().dynamic_inputs(patterns)
        values[inputs.CACHE_SLOTS] = self._batch.slot_mapping.data_ptr()
        if self._tap_shape is not None:
            num_layers, width, dtype = self._tap_shape
            tokens = self._batch.token_ids.shape[0]
            for place in range(num_layers):
                kept = self.taps[place] = torch.empty(tokens, width, dtype=dtype)
                values[inputs.tap(place, dtype, width)] = kept.data_ptr()
        if self._state_memory is not None:
            steps = self._single_steps
            assert steps is not None, "a program runs one generated token of each row"
            values[inputs.STATE_SLOTS] = steps.slots.data_ptr()
            for layer in self._state_memory.states:
                self._state_memory.start(layer, self._waves[0].starts)
        return values

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

    def _store_of(self, layer: int, hidden: Tensor) -> CacheSlots | None:
        index = self._cache_layers[layer]
        keys, values = self._cache.keys[index], self._cache.values[index]
        if isinstance(keys, RoundedSlots) or isinstance(values, RoundedSlots):
            return None
        if not choice.runs_cuda_kernels(hidden.device):
            return None
        return CacheSlots(keys, values, self._batch.slot_mapping)

    def _attend(
        self, layer: int, attention: Attention, query: Tensor, own: KeysValues | None, metadata: AttentionMetadata
    ) -> Tensor:
        index, config = self._cache_layers[layer], attention.config
        if own is not None:
            self._cache.write(index, self._batch.slot_mapping, *own)
        keys, values = self._cache.keys[index], self._cache.values[index]
        if isinstance(attention, JointAttention):
            assert self._cross_cache is not None, "joint attention needs the encoder's keys and values"
            source = self._cross_cache.keys[layer], self._cross_cache.values[layer]
            of_source = self._metadata_of(self._pattern(layer, cross=True))
            return attention.attend(query, [(keys, values, metadata), (*source, of_source)])
        return backend(query).paged_attention(
            query, keys, values, metadata, config.scale, config.score_cap, attention.sink_scores
        )

    def _attend_source(self, layer: int, attention: Attention, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        assert self._cross_cache is not None, "cross-attention needs the encoder's keys and values"
        keys, values = self._cross_cache.keys[layer], self._cross_cache.values[layer]
        return backend(query).paged_attention(
            query, keys, values, metadata, attention.config.scale, attention.config.score_cap
        )

    def _mix(self, layer: int, mixer: Mixer, projections: Projections) -> Tensor:
        assert self._state_memory is not None, "a mixer needs a state memory"
        return run_waves(layer, mixer, projections, self._state_memory, self._waves)

    @cached_property
    def _waves(self) -> tuple[Wave, ...]:
        return plan_waves(self._batch)

    @cached_property
    def _single_steps(self) -> SteppedTokens | None:
        """The tokens of a step that has one generated token per row, in the order of the rows; None for other steps."""
        if len(self._waves) != 1 or self._waves[0].chunked or len(self._waves[0].stepped) != 1:
            return None
        return self._waves[0].stepped[0]
