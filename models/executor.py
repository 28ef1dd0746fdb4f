"""The layers of a stack as a program of the compiled library: recorded when they are first used, run ever after.

The model's own Python is called once with `Rows` in place of tensors, and a step that names what later steps will
bring. A stack that does what no program can, or a step that is not made for one, is computed operation by operation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Protocol, cast

import torch
from torch import Tensor

from models.attention_metadata import AttentionPlan
from models.backends import interface as ops
from models.backends.cpu.lowering import program_of
from models.backends.cpu.recording import Angles, Cache, Chosen, Given, NotRecordable, Recording, Rows, Sight
from models.config import BucketBiasConfig, RopeConfig, StackConfig
from models.layers.attention import Attention
from models.layers.full_sequence_attention import FullSequenceAttention
from models.layers.positions import PositionEncodings, Rotation
from models.scoring import Scoring
from models.step_inputs import Kind, Step


class Layers(Protocol):
    """What is recorded: all that comes after the embedding."""

    config: StackConfig

    def layers_of(self, x: Tensor, step: Step) -> Tensor: ...


class RecordingStep(Step):
    """Stands for every step of one kind (`Step.recorded_as`), in which all rows are wanted or not. Brings names, no
    tensors."""

    def __init__(self, config: StackConfig, recorded_as: str, all_wanted: bool) -> None:
        ropes = {layer.attention.rope for layer in config.layers}
        rotations = {rope: _recorded_rotation(rope, "positions") for rope in ropes if rope is not None}
        rows = None if all_wanted else cast(Tensor, Chosen("rows", count=Given("num_rows")))
        super().__init__(PositionEncodings(rotations), rows, len(config.layers))
        self._config, self._paged = config, recorded_as == "paged"

    @cached_property
    def _rotations_of_wanted(self) -> dict[RopeConfig, Rotation]:
        return {rope: _recorded_rotation(rope, "wanted positions") for rope in self.rotations}

    def self_attention(self, layer: int, attention: Attention, hidden: Tensor) -> Tensor:
        if isinstance(attention, FullSequenceAttention):
            raise NotRecordable("attention that works on whole texts")
        return super().self_attention(layer, attention, hidden)

    def _make_plan(self, kind: Kind) -> AttentionPlan:
        return cast(AttentionPlan, Sight(kind, None))

    def _attend(
        self, layer: int, attention: Attention, query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan
    ) -> Tensor:
        bias = self._config.score_bias
        if bias is not None:
            each = isinstance(bias, BucketBiasConfig) and bias.per_layer
            sight = replace(cast(Sight, plan), bias=("bias", layer) if each else "bias")
            plan = cast(AttentionPlan, sight)
        if not self._paged:
            return ops.packed_attention(query, key, value, plan, attention.config.scale, attention.config.score_cap)
        keys, values = self._sides("self", layer, attention)
        ops.write_slots(keys, values, cast(Tensor, Given("slots")), key, value)
        return ops.paged_attention(query, keys, values, plan, attention.config.scale, attention.config.score_cap)

    def _attend_source(self, layer: int, attention: Attention, query: Tensor, plan: AttentionPlan) -> Tensor:
        if not self._paged:
            raise NotRecordable("cross-attention to packed sources")
        keys, values = self._sides("cross", layer, attention)
        return ops.paged_attention(query, keys, values, plan, attention.config.scale)

    def _sides(self, cache: str, layer: int, attention: Attention) -> tuple[Tensor, Tensor]:
        heads = attention.config.num_kv_heads
        keys, values = (Cache((cache, side, layer), kv_heads=heads) for side in ("keys", "values"))
        return cast(Tensor, keys), cast(Tensor, values)


def _recorded_rotation(rope: RopeConfig, positions_name: str) -> Rotation:
    positions = Given((positions_name, rope))
    cos, sin = (Angles((name, rope), positions=positions, half=rope.dim // 2) for name in ("cos", "sin"))
    return Rotation(rope, cast(Tensor, cos), cast(Tensor, sin))


class Recorded:
    """The programs of one stack, one for each kind of step, and another where tokens are scored."""

    def __init__(self, stack: Layers) -> None:
        self._stack = stack
        self._programs: dict[tuple[str, bool, torch.dtype, bool], ops.Program | None] = {}

    def __call__(self, x: Tensor, step: Step, scoring: Scoring | None = None) -> Tensor:
        """See `Layers`. scoring: what is made of the output as well, or None."""
        program = self._program(x, step, scoring)
        if program is None and scoring is not None:
            output = self(x, step)
            scoring(output)
            return output
        if program is None:
            return self._stack.layers_of(x, step)
        given = step.given(program.kinds)
        if scoring is not None:
            given |= scoring.given((x if step.rows is None else step.rows).shape[0])
        return program.run(x, given, step.kept)

    def _program(self, x: Tensor, step: Step, scoring: Scoring | None) -> ops.Program | None:
        if step.recorded_as is None or not ops.records(x):
            return None
        key = (step.recorded_as, step.rows is None, x.dtype, scoring is not None)
        if key not in self._programs:
            self._programs[key] = self._record(x, step.recorded_as, step.rows is None, scoring)
        return self._programs[key]

    def _record(self, x: Tensor, kind: str, all_wanted: bool, scoring: Scoring | None) -> ops.Program | None:
        recording = Recording(x.dtype)
        try:
            step = RecordingStep(self._stack.config, kind, all_wanted)
            output = self._stack.layers_of(cast(Tensor, recording.input(x.shape[1])), step)
            if scoring is not None:
                scoring.record(output)
            return program_of(cast(Rows, output))
        except NotRecordable:
            return None
