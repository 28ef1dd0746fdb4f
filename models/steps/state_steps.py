"""Run the mixers of one step, in waves of rows that do not depend on each other.

Rows of prompt tokens run in chunks, rows of generated tokens run token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.layers.mixer import Mixer, Projections
from models.steps.batch import DecoderBatch
from models.steps.state_memory import StateMemory


@dataclass(frozen=True)
class ChunkedRow:
    """A row of prompt tokens: the tokens start..end-1 of the step. slot: slot of the row's state."""

    start: int
    end: int
    slot: int


@dataclass(frozen=True)
class SteppedTokens:
    """One generated token of each of several rows, which a mixer computes in one call.

    tokens: [rows], int64, indices of the tokens in the step. slots: [rows], int64, slots of the rows' states.
    """

    tokens: Tensor
    slots: Tensor


@dataclass(frozen=True)
class Wave:
    """Rows that can run together: none of them reads a state that an earlier row of the wave writes.

    starts: states to set first: pairs (slot to copy or `ZERO_STATE`, slot to set), for rows that read another slot than
        they write.
    chunked: rows of prompt tokens. stepped: generated tokens; rows with several tokens are in several entries.
    """

    starts: tuple[tuple[int, int], ...]
    chunked: tuple[ChunkedRow, ...]
    stepped: tuple[SteppedTokens, ...]


def plan_waves(batch: DecoderBatch) -> tuple[Wave, ...]:
    """Divide the rows of a step into waves, in the order in which they must run.

    There is one wave, unless a row reads a state that an earlier row writes.
    """
    waves = []
    pending = list(range(len(batch.state_slots)))
    while pending:
        ready: list[int] = []
        later: list[int] = []
        unwritten: set[int] = set()
        for row in pending:
            (later if batch.state_sources[row] in unwritten else ready).append(row)
            unwritten.add(batch.state_slots[row])
        waves.append(_wave(batch, ready))
        pending = later
    return tuple(waves)


def _wave(batch: DecoderBatch, rows: Sequence[int]) -> Wave:
    offsets, lengths, slots = batch.offsets, batch.query_lens, batch.state_slots
    starts = [(batch.state_sources[row], slots[row]) for row in rows]
    stepped = [row for row in rows if not batch.chunked_rows[row]]
    return Wave(
        tuple((source, slot) for source, slot in starts if source != slot),
        tuple(ChunkedRow(offsets[row], offsets[row + 1], slots[row]) for row in rows if batch.chunked_rows[row]),
        tuple(
            SteppedTokens(
                batch.token_ids.new_tensor([offsets[row] + place for row in stepped if lengths[row] > place]),
                batch.token_ids.new_tensor([slots[row] for row in stepped if lengths[row] > place]),
            )
            for place in range(max((lengths[row] for row in stepped), default=0))
        ),
    )


def run_waves(layer: int, mixer: Mixer, projections: Projections, memory: StateMemory, waves: Sequence[Wave]) -> Tensor:
    """Run a mixer for all rows of a step, one wave after another, and update the states of the rows.

    layer: index of the mixer's layer.
    projections: results of the mixer's input projections, for all tokens of the step.
    Returns the mixer's results before its output projection: [tokens, width], model dtype.
    """
    mixed = projections[0].new_empty(projections[0].shape[0], mixer.width)
    states = memory.states[layer]
    for wave in waves:
        memory.start(layer, wave.starts)
        for row in wave.chunked:
            own = [tensor[row.slot] for tensor in states]
            mixed[row.start : row.end] = mixer.chunked(tuple(each[row.start : row.end] for each in projections), own)
        for stepped in wave.stepped:
            mixed[stepped.tokens] = mixer.step(
                tuple(each[stepped.tokens] for each in projections), states, stepped.slots
            )
    return mixed


def run_whole(mixer: Mixer, projections: Projections, lengths: Sequence[int]) -> Tensor:
    """Run a mixer over whole sequences, one after the other. The state of each begins with zeros.

    projections: results of the mixer's input projections for all tokens. lengths: number of tokens of each sequence.
    Returns [tokens, width], model dtype.
    """
    parts = []
    for rows in zip(*(torch.split(each, list(lengths)) for each in projections), strict=True):
        zeros = [projections[0].new_zeros(shape, dtype=torch.float32) for shape in mixer.config.state_shapes]
        parts.append(mixer.chunked(rows, zeros))
    return torch.cat(parts)
