"""Step inputs that take the place of others while a program is traced."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.choice import backend
from models.backends.cpu.trace import ProgramInput, SymbolicMetadata, Trace
from models.backends.int8_slots import CacheSide, Int8Slots
from models.config import BucketBiasConfig, QueryScale, RopeConfig, StackConfig
from models.layers.attention import Attention
from models.layers.full_sequence_attention import FullSequenceAttention
from models.layers.mixer import Mixer, Projections
from models.layers.positions import PositionEncodings, Rotation
from models.steps.step_inputs.base import AttentionPattern, KeysValues, StepInputs, StepKind
from models.steps.step_inputs.shared_keys import SharedKeys


class SymbolicStepInputs(StepInputs):
    """Step inputs for tracing a program, which then runs all steps of one kind. Its tensors are program inputs.

    all_rows: whether the steps return all rows; otherwise they return their output rows.
    has_int8_cache: see `StepInputs`.
    """

    def __init__(
        self, trace: Trace, config: StackConfig, kind: StepKind, all_rows: bool, has_int8_cache: bool = False
    ) -> None:
        self._trace, self._config, self._is_paged = trace, config, kind == "paged"
        self.has_int8_cache = has_int8_cache
        rows = None if all_rows else trace.input("rows", torch.int64, count=trace.count("num_rows"))
        scales = {one: trace.input(("query scale", one), torch.float32, 1) for one in config.query_scales}
        encodings = PositionEncodings(
            self._symbolic_rotations("positions"), query_scales=cast("Mapping[QueryScale, Tensor]", scales)
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
        """The vectors that the stack has set. Those of a step that begins with hidden states are set outside."""
        if self._layer_inputs is None:
            self._trace.refuse("vectors of tokens that are not an input of the program")
        return self._layer_inputs

    @layer_inputs.setter
    def layer_inputs(self, vectors: Tensor | None) -> None:
        self._layer_inputs = vectors

    @cached_property
    def _output_rotations(self) -> Mapping[RopeConfig, Rotation]:
        return self._symbolic_rotations("output positions")

    def _symbolic_rotations(self, positions: str) -> dict[RopeConfig, Rotation]:
        """Rotations by configuration, as program inputs. positions: name of the input with the tokens' positions."""
        rotations = {}
        for rope in self._config.ropes:
            cos, sin = (self._trace.input((name, rope), torch.float32, rope.dim // 2) for name in ("cos", "sin"))
            index = self._trace.input((positions, rope), torch.int64)
            rotations[rope] = Rotation(rope, cast(Tensor, cos), cast(Tensor, sin), cast(Tensor, index))
        return rotations

    def self_attention(self, layer: int, attention: Attention, hidden: Tensor) -> Tensor:
        if isinstance(attention, FullSequenceAttention):
            self._trace.refuse("attention over full sequences")
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
            metadata = cast(AttentionMetadata, SymbolicMetadata(pattern, ("bias", layer) if per_layer else "bias"))
        scale, cap, sinks = attention.config.scale, attention.config.score_cap, attention.sink_scores
        if not self._is_paged:
            key, value = self._shared_keys.of(layer, attention, own)
            return backend(query).ragged_attention(query, key, value, metadata, scale, cap, sinks)
        keys, values = self._caches("self", self._config.cache_layers[layer], attention)
        if own is not None:
            slots = cast(Tensor, self._trace.input("slots", torch.int64))
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
            cast(Tensor, self._trace.input(("state", layer, number), torch.float32, *shape))
            for number, shape in enumerate(mixer.config.state_shapes)
        ]
        return mixer.step(projections, states, cast(Tensor, self._trace.input("state slots", torch.int64)))

    def _caches(self, cache: str, layer: int, attention: Attention) -> tuple[CacheSide, CacheSide]:
        """Keys and values of a layer: [slots, kv_heads, head_dim]. Kernels read them in the dtype of the query."""
        return self._cache_side(cache, "key", layer, attention), self._cache_side(cache, "value", layer, attention)

    def _cache_side(self, cache: str, side: str, layer: int, attention: Attention) -> CacheSide:
        heads, dim = attention.config.num_kv_heads, attention.config.head_dim
        if not self.has_int8_cache:
            return cast(Tensor, self._trace.input((cache, f"{side}s", layer), torch.float32, heads, dim))
        codes = self._trace.input((cache, f"{side}s", layer), torch.int8, heads, dim)
        scales = self._trace.input((cache, f"{side}_scales", layer), torch.bfloat16)
        block_size = ProgramInput((cache, "block_size"))
        return Int8Slots(cast(Tensor, codes), cast(Tensor, scales), cast(int, block_size))
