"""Step inputs for tracing a program: program inputs stand in place of the tensors of one step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.choice import backend
from models.backends.cpu.programs import inputs
from models.backends.cpu.programs.inputs import CacheRole, Side
from models.backends.cpu.programs.trace import SymbolicMetadata, Trace
from models.backends.rounded_slots import CacheSide, RoundedSlots
from models.config import BucketBiasConfig, QueryScale, RopeConfig, StackConfig
from models.layers.attention import Attention
from models.layers.full_sequence_attention import FullSequenceAttention
from models.layers.joint_attention import JointAttention
from models.layers.mixer import Mixer, Projections
from models.layers.positions import PositionEncodings, Rotation
from models.steps.step_inputs.base import AttentionPattern, KeysValues, StepInputs, StepKind
from models.steps.step_inputs.shared_keys import SharedKeys


class SymbolicStepInputs(StepInputs):
    """Step inputs for tracing a program, which then runs all steps of one kind. Its tensors are program inputs.

    all_rows: whether the steps return all rows; otherwise they return their output rows.
    has_int8_cache: whether the cache holds int8 keys and values.
    """

    def __init__(
        self, trace: Trace, config: StackConfig, kind: StepKind, all_rows: bool, has_int8_cache: bool = False
    ) -> None:
        self._trace, self._config, self._is_paged = trace, config, kind == "paged"
        self.has_int8_cache = has_int8_cache
        rows = None if all_rows else trace.input(inputs.OUTPUT_ROWS, trace.count(inputs.NUM_OUTPUT_ROWS))
        scales = {scale: trace.input(inputs.query_scale(scale)) for scale in config.query_scales}
        encodings = PositionEncodings(
            self._symbolic_rotations(of_output_rows=False), query_scales=cast("Mapping[QueryScale, Tensor]", scales)
        )
        super().__init__(encodings, cast("Tensor | None", rows), len(config.layers))
        self._shared_keys = SharedKeys(config.key_value_layers)

    @property
    def patterns(self) -> tuple[AttentionPattern, ...]:
        """The patterns of all attention traced so far."""
        return tuple(self._metadata)

    @property
    def lengths(self) -> tuple[int, ...]:
        self._trace.refuse("the lengths of the sequences")

    @property
    def layer_inputs(self) -> Tensor | None:
        """The vectors per token and layer of `PerLayerEmbedding`. The stack sets them while it is traced.

        Raises NotTraceable in a program that begins with hidden states, because the vectors are computed outside of it.
        """
        if self._layer_inputs is None:
            self._trace.refuse("vectors of tokens that are not an input of the program")
        return self._layer_inputs

    @layer_inputs.setter
    def layer_inputs(self, vectors: Tensor | None) -> None:
        self._layer_inputs = vectors

    @cached_property
    def _output_rotations(self) -> Mapping[RopeConfig, Rotation]:
        return self._symbolic_rotations(of_output_rows=True)

    def _symbolic_rotations(self, of_output_rows: bool) -> dict[RopeConfig, Rotation]:
        """The rotations as program inputs, by rotary configuration.

        of_output_rows: True for the positions of the output rows only, False for the positions of all rows.
        """
        rotations = {}
        for rope in self._config.ropes:
            own = inputs.rotation(rope)
            parts = own.cos, own.sin, own.output_positions if of_output_rows else own.positions
            cos, sin, positions = (cast(Tensor, self._trace.input(part)) for part in parts)
            rotations[rope] = Rotation(rope, cos, sin, positions)
        return rotations

    def read_draft_states(self, dtype: torch.dtype, width: int) -> Tensor:
        return cast(Tensor, self._trace.input(inputs.draft_states(dtype, width)))

    def tap(self, place: int, x: Tensor) -> None:
        if self._is_paged:
            copied = cast(Tensor, self._trace.input(inputs.tap(place, x.dtype, x.shape[1])))
            backend(x).copy_into(x, copied)

    def self_attention(self, layer: int, attention: Attention, hidden: Tensor) -> Tensor:
        if isinstance(attention, FullSequenceAttention):
            self._trace.refuse("attention over full sequences")
        if isinstance(attention, JointAttention):
            self._trace.refuse(attention.not_captured)
        return super().self_attention(layer, attention, hidden)

    def _make_metadata(self, pattern: AttentionPattern) -> AttentionMetadata:
        return cast(AttentionMetadata, SymbolicMetadata(pattern))

    def _attend(
        self, layer: int, attention: Attention, query: Tensor, own: KeysValues | None, metadata: AttentionMetadata
    ) -> Tensor:
        bias = self._config.score_bias
        if bias is not None:
            per_layer = isinstance(bias, BucketBiasConfig) and bias.per_layer
            pattern = cast(SymbolicMetadata, metadata).pattern
            bias_input = inputs.score_bias(layer if per_layer else None)
            metadata = cast(AttentionMetadata, SymbolicMetadata(pattern, bias_input))
        scale, cap, sinks = attention.config.scale, attention.config.score_cap, attention.sink_scores
        if not self._is_paged:
            key, value = self._shared_keys.of(layer, attention, own)
            return backend(query).ragged_attention(query, key, value, metadata, scale, cap, sinks)
        keys, values = self._caches("self", self._config.cache_layers[layer], attention)
        if own is not None:
            slots = cast(Tensor, self._trace.input(inputs.CACHE_SLOTS))
            backend(own[0]).write_slots(keys, values, slots, *own)
        return backend(query).paged_attention(query, keys, values, metadata, scale, cap, sinks)

    def _attend_source(self, layer: int, attention: Attention, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        if not self._is_paged:
            self._trace.refuse("cross-attention to a source that is not cached")
        keys, values = self._caches("cross", layer, attention)
        return backend(query).paged_attention(
            query, keys, values, metadata, attention.config.scale, attention.config.score_cap
        )

    def _mix(self, layer: int, mixer: Mixer, projections: Projections) -> Tensor:
        if not self._is_paged:
            self._trace.refuse("mixers over whole sequences")
        states = [
            cast(Tensor, self._trace.input(inputs.state(layer, index, shape)))
            for index, shape in enumerate(mixer.config.state_shapes)
        ]
        return mixer.step(projections, states, cast(Tensor, self._trace.input(inputs.STATE_SLOTS)))

    def _caches(self, role: CacheRole, layer: int, attention: Attention) -> tuple[CacheSide, CacheSide]:
        """Keys and values of a layer in a cache, as program inputs."""
        return self._cache_side(role, "keys", layer, attention), self._cache_side(role, "values", layer, attention)

    def _cache_side(self, role: CacheRole, side: Side, layer: int, attention: Attention) -> CacheSide:
        heads, dim = attention.config.num_kv_heads, attention.config.head_dim
        own = inputs.cache_side(role, side, layer, heads, dim, self.has_int8_cache)
        numbers = cast(Tensor, self._trace.input(own.numbers))
        if not self.has_int8_cache:
            return numbers
        return RoundedSlots(numbers, cast(Tensor, self._trace.input(own.scales)), cast(int, inputs.block_size(role)))
