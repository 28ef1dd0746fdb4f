"""Runs the mixers of one step: which rows run in which form, from which state, in which order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.batch import DecoderBatch
from models.layers.mixer import Mixer
from models.state_memory import StateMemory


@dataclass(frozen=True)
class ChunkedRow:
    """A row of prompt tokens: tokens start..end-1 of the step.

    source: slot that the row reads, or `ZERO_STATE`. slot: slot that it writes.
    """

    start: int
    end: int
    source: int
    slot: int


@dataclass(frozen=True)
class SteppedRows:
    """Rows of generated tokens, longest first.

    sources, slots: slots that the rows read and write.
    tokens: for each position in the rows, the indices of the tokens at it, [n], int64. Shorter rows are missing in
        later positions, so that the first n rows remain.
    """

    sources: tuple[int, ...]
    slots: tuple[int, ...]
    tokens: tuple[Tensor, ...]


@dataclass(frozen=True)
class Wave:
    """Rows whose states are all available: none reads what another one writes."""

    chunked: tuple[ChunkedRow, ...]
    stepped: SteppedRows | None


def plan_waves(batch: DecoderBatch) -> tuple[Wave, ...]:
    """The order of the rows of a step. Rows of one sequence follow each other; a step usually has one wave."""
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


def _wave(batch: DecoderBatch, rows: list[int]) -> Wave:
    offsets, sources, slots = batch.offsets, batch.state_sources, batch.state_slots
    chunked = [row for row in rows if batch.chunked_rows[row]]
    stepped = sorted((row for row in rows if not batch.chunked_rows[row]), key=lambda row: -batch.query_lens[row])
    tokens = [
        torch.tensor(
            [offsets[row] + position for row in stepped if batch.query_lens[row] > position],
            device=batch.token_ids.device,
        )
        for position in range(batch.query_lens[stepped[0]] if stepped else 0)
    ]
    return Wave(
        tuple(ChunkedRow(offsets[row], offsets[row + 1], sources[row], slots[row]) for row in chunked),
        SteppedRows(tuple(sources[row] for row in stepped), tuple(slots[row] for row in stepped), tuple(tokens))
        if stepped
        else None,
    )


def run_waves(layer: int, mixer: Mixer, projected: Tensor, memory: StateMemory, waves: tuple[Wave, ...]) -> Tensor:
    """Run all rows of a step between the projections of a mixer, and store their states.

    projected: [tokens, width], see `Mixer.project`. Returns [tokens, mixed width].
    """
    parts: list[Tensor] = []
    indices: list[Tensor] = []
    for wave in waves:
        for row in wave.chunked:
            states = tuple(tensor[0] for tensor in memory.read(layer, (row.source,)))
            mixed, states = mixer.chunked(projected[row.start : row.end], states)
            memory.write(layer, (row.slot,), [tensor[None] for tensor in states])
            parts.append(mixed)
            indices.append(torch.arange(row.start, row.end, device=projected.device))
        if wave.stepped is not None:
            _run_stepped(layer, mixer, projected, memory, wave.stepped, parts)
            indices += wave.stepped.tokens
    mixed = torch.cat(parts)
    return torch.empty_like(mixed).index_copy_(0, torch.cat(indices), mixed)


def _run_stepped(
    layer: int, mixer: Mixer, projected: Tensor, memory: StateMemory, rows: SteppedRows, parts: list[Tensor]
) -> None:
    states = memory.read(layer, rows.sources)
    for tokens in rows.tokens:
        count = len(tokens)
        ended = len(states[0]) - count
        if ended:
            memory.write(layer, rows.slots[count : count + ended], [tensor[count:] for tensor in states])
            states = tuple(tensor[:count] for tensor in states)
        mixed, states = mixer.step(projected.index_select(0, tokens), states)
        parts.append(mixed)
    memory.write(layer, rows.slots[: len(states[0])], states)


def run_whole(mixer: Mixer, projected: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Run whole sequences that lie one after the other, each from a state of zeros. Returns [tokens, mixed width]."""
    zero = tuple(projected.new_zeros(shape, dtype=torch.float32) for shape in mixer.state_shapes)
    return torch.cat([mixer.chunked(rows, zero)[0] for rows in projected.split(lengths)])
