"""What one forward pass brings to every layer's attention: positions, who sees whom, and where keys and values are.

`PackedStep`: whole sequences at once, nothing is kept. `PagedStep`: next tokens of rows whose past lies in a cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.attention_metadata import AttentionPlan, KeyBias
from models.backends import interface as ops
from models.batch import AudioBatch, DecoderBatch, EncoderBatch
from models.config import AttentionConfig, RopeConfig
from models.kv_cache import KVCache
from models.layers.attention import Attention
from models.layers.full_sequence_attention import FullSequenceAttention
from models.layers.positions import PositionEncodings, Rotation


class Kind(NamedTuple):
    """Who looks at whom. causal, window: of self-attention. cross: at the source instead. wanted: only the tokens whose
    hidden states are wanted look."""

    causal: bool = False
    window: int | None = None
    cross: bool = False
    wanted: bool = False


class Step(ABC):
    """Attention for one forward pass through one stack. A plan is made once for each kind and kept.

    In the last layer the step narrows: what comes after its keys and values, or where whole texts are needed after its
    attention, is computed of the tokens whose hidden states are wanted, and of no others.

    recorded_as: the kind of program that such steps run, or None for those that are computed as they come. kept: what
    such a program is run with that stays from step to step; `given` tells the rest.

    rows: [n], int64, the tokens whose hidden states are wanted, or None for all. adapters: the name of each sequence's,
    or no names; with them all layers compute every token, and none is a program.
    """

    recorded_as: str | None = None
    kept: tuple[Mapping[Hashable, int], ...] = ()

    def __init__(
        self,
        encodings: PositionEncodings,
        rows: Tensor | None,
        num_layers: int,
        adapters: Sequence[str] = (),
    ) -> None:
        self.rotations, self._score_bias, self.rows = encodings.rotations, encodings.score_bias, rows
        # The products of adapters know which rows of a whole step are theirs.
        self._narrows_at = num_layers if adapters else num_layers - 1
        if adapters:
            self.recorded_as = None
        self._plans: dict[Kind, AttentionPlan] = {}

    def wanted(self, layer: int, x: Tensor) -> Tensor:
        """The rows of `x` [tokens, ...] that go on behind the attention of a layer, or behind all layers."""
        return ops.take_rows(x, self.rows) if self.rows is not None and layer == self._narrows_at else x

    def given(self, kinds: Iterable[Kind]) -> dict[Hashable, int]:
        """Addresses and numbers that a program is run with, by the names of `models.executor`.

        kinds: of the attention in it.
        """
        found: dict[Hashable, int] = {}
        for rope, rotation in self.rotations.items():
            positions = rotation.positions
            found["cos", rope], found["sin", rope] = rotation.cos_table.data_ptr(), rotation.sin_table.data_ptr()
            found["positions", rope] = 0 if positions is None else positions.data_ptr()
        bias = self._bias
        if bias is not None and bias.dim() == 3:
            found |= {("bias", layer): one.data_ptr() for layer, one in enumerate(bias)}
        elif bias is not None:
            found["bias"] = bias.data_ptr()
        for kind in kinds:
            for name, value in self._plan(kind).facts.items():
                found[kind, name] = value
        if self.rows is not None:
            found["rows"], found["num_rows"] = self.rows.data_ptr(), self.rows.shape[0]
            for rope, rotation in self._rotations_of_wanted.items():
                assert rotation.positions is not None
                found["wanted positions", rope] = rotation.positions.data_ptr()
        return found

    @cached_property
    def _rotations_of_wanted(self) -> dict[RopeConfig, Rotation]:
        assert self.rows is not None
        return {rope: rotation.select(self.rows) for rope, rotation in self.rotations.items()}

    @cached_property
    def _bias(self) -> Tensor | None:
        """The score bias in float32, contiguous."""
        bias = self._score_bias.values if isinstance(self._score_bias, KeyBias) else self._score_bias
        return None if bias is None else bias.float().contiguous()

    def self_attention(self, layer: int, attention: Attention, hidden: Tensor) -> Tensor:
        """hidden: [tokens, hidden] -> [n, hidden], of the tokens that go on."""
        kind = self._kind(layer, causal=attention.config.causal, window=attention.config.window)
        if kind.wanted and attention.separable:
            query = attention.queries(self.wanted(layer, hidden), self._rotations_of_wanted)
            key, value = attention.keys_values(hidden, self.rotations)
        else:
            query, key, value = attention.queries_keys_values(hidden, self.rotations)
            query = self.wanted(layer, query)
        plan = self._plan(kind)
        if isinstance(self._score_bias, Tensor) and self._score_bias.dim() == 3:
            plan = plan.biased(self._score_bias[layer])
        return attention.project_output(self._attend(layer, attention, query, key, value, plan))

    def cross_attention(self, layer: int, attention: Attention, hidden: Tensor) -> Tensor:
        """The same, but the keys and values come from the encoder, and hidden states are of the tokens that go on."""
        plan = self._plan(self._kind(layer, cross=True))
        return attention.project_output(self._attend_source(layer, attention, attention.queries(hidden, {}), plan))

    def _kind(self, layer: int, causal: bool = False, window: int | None = None, cross: bool = False) -> Kind:
        return Kind(causal, window, cross, self.rows is not None and layer == self._narrows_at)

    def _plan(self, kind: Kind) -> AttentionPlan:
        if kind not in self._plans:
            self._plans[kind] = self._make_plan(kind)
        return self._plans[kind]

    @abstractmethod
    def _make_plan(self, kind: Kind) -> AttentionPlan: ...

    @abstractmethod
    def _attend(
        self, layer: int, attention: Attention, query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan
    ) -> Tensor: ...

    @abstractmethod
    def _attend_source(self, layer: int, attention: Attention, query: Tensor, plan: AttentionPlan) -> Tensor: ...


class Source(NamedTuple):
    """What an encoder made of each sequence's source. hidden: [source tokens, hidden]. lengths: tokens of each."""

    hidden: Tensor
    lengths: tuple[int, ...]


class PackedStep(Step):
    """Whole sequences, packed one after the other.

    dtype: of hidden states. source: what cross-attention looks at, or None. lengths: tokens of each sequence.
    """

    recorded_as: str | None = "packed"

    def __init__(
        self,
        batch: EncoderBatch | AudioBatch,
        encodings: PositionEncodings,
        num_layers: int,
        dtype: torch.dtype,
        source: Source | None = None,
    ) -> None:
        self._texts = batch if isinstance(batch, EncoderBatch) else None
        rows = None if self._texts is None else self._texts.wanted
        super().__init__(encodings, rows, num_layers, batch.adapters)
        self.lengths, self._dtype, self._device = batch.lengths, dtype, batch.positions.device
        self._source, self._encodings = source, encodings
        self._whole_plans: dict[AttentionConfig, Any] = {}

    def self_attention(self, layer: int, attention: Attention, hidden: Tensor) -> Tensor:
        if not isinstance(attention, FullSequenceAttention):
            return super().self_attention(layer, attention, hidden)
        if attention.config not in self._whole_plans:
            assert self._texts is not None, "sounds are no texts"
            self._whole_plans[attention.config] = attention.make_plan(self._texts, self._encodings, self._dtype)
        plan = self._whole_plans[attention.config]
        return self.wanted(layer, attention(hidden, self.rotations, plan))

    def _make_plan(self, kind: Kind) -> AttentionPlan:
        query_lens, firsts = self.lengths, None
        if kind.wanted:
            assert self._texts is not None
            query_lens, firsts = (1,) * len(self.lengths), self._texts.output_positions
        if kind.cross:
            assert self._source is not None
            return AttentionPlan(query_lens, self._source.lengths, self._dtype, self._device)
        return AttentionPlan(
            query_lens,
            self.lengths,
            self._dtype,
            self._device,
            kind.causal,
            kind.window,
            score_bias=self._score_bias,
            firsts=firsts,
        )

    def _attend(
        self, layer: int, attention: Attention, query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan
    ) -> Tensor:
        return ops.packed_attention(query, key, value, plan, attention.config.scale, attention.config.score_cap)

    def _attend_source(self, layer: int, attention: Attention, query: Tensor, plan: AttentionPlan) -> Tensor:
        assert self._source is not None, "cross-attention needs the encoder's output"
        key, value = attention.keys_values(self._source.hidden, {})
        return ops.packed_attention(query, key, value, plan, attention.config.scale)


class PagedStep(Step):
    """Next tokens of rows: their keys and values are written to the cache, then every query looks at its row's blocks.

    cross_cache: filled before with the keys and values of each row's source, or None.
    """

    recorded_as: str | None = "paged"

    def __init__(
        self,
        batch: DecoderBatch,
        cache: KVCache,
        cross_cache: KVCache | None,
        encodings: PositionEncodings,
    ) -> None:
        super().__init__(encodings, batch.wanted, len(cache.keys), batch.adapters)
        self._batch, self._cache, self._cross_cache = batch, cache, cross_cache
        self._dtype, self._device = cache.dtype, batch.token_ids.device
        self.kept = (cache.addresses("self"),)
        if cross_cache is not None:
            self.kept += (cross_cache.addresses("cross"),)

    def given(self, kinds: Iterable[Kind]) -> dict[Hashable, int]:
        found = super().given(kinds)
        found["slots"] = self._batch.slot_mapping.data_ptr()
        return found

    def _make_plan(self, kind: Kind) -> AttentionPlan:
        batch, dtype, device = self._batch, self._dtype, self._device
        query_lens = batch.query_lens
        if kind.wanted:
            assert batch.output_lens is not None
            query_lens = batch.output_lens
        if kind.cross:
            assert self._cross_cache is not None
            tables, size = batch.source_block_tables, self._cross_cache.block_size
            return AttentionPlan(query_lens, batch.source_lens, dtype, device, block_tables=tables, block_size=size)
        return AttentionPlan(
            query_lens,
            batch.key_lens,
            dtype,
            device,
            kind.causal,
            kind.window,
            self._score_bias,
            batch.block_tables,
            self._cache.block_size,
        )

    def _attend(
        self, layer: int, attention: Attention, query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan
    ) -> Tensor:
        self._cache.write(layer, self._batch.slot_mapping, key, value)
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        return ops.paged_attention(query, keys, values, plan, attention.config.scale, attention.config.score_cap)

    def _attend_source(self, layer: int, attention: Attention, query: Tensor, plan: AttentionPlan) -> Tensor:
        assert self._cross_cache is not None, "cross-attention needs the encoder's keys and values"
        keys, values = self._cross_cache.keys[layer], self._cross_cache.values[layer]
        return ops.paged_attention(query, keys, values, plan, attention.config.scale)
