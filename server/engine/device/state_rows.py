"""Divides the rows of a decoder batch where state snapshots are taken.

Each part starts from one state and ends in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from models.steps.batch import DecoderBatch
from models.steps.state_memory import ZERO_STATE
from server.engine.scheduling.schedule import ScheduledRow


def divide_rows(batch: DecoderBatch, rows: Sequence[ScheduledRow]) -> DecoderBatch:
    """Divide the rows of a batch: the result has one row for each part of a row, in order, with its state slots.

    batch: one row for each of `rows`. The tokens, and the order of the output rows, stay as they are.
    rows: scheduled rows, whose states say how each row is divided.
    """
    owners: list[int] = []
    query_lens: list[int] = []
    key_lens: list[int] = []
    output_lens: list[int] = []
    sources: list[int] = []
    slots: list[int] = []
    are_prompts: list[bool] = []
    for index, row in enumerate(rows):
        assert row.sequence.state is not None, "a sequence of a model with mixers has a state"
        end = batch.key_lens[index]
        left = batch.query_lens[index]
        outputs = left if batch.output_lens is None else batch.output_lens[index]
        for part in row.sequence.state.parts:
            left -= part.num_tokens
            owners.append(index)
            query_lens.append(part.num_tokens)
            key_lens.append(end - left)
            output_lens.append(min(max(outputs - left, 0), part.num_tokens))
            sources.append(ZERO_STATE if part.source is None else part.source)
            slots.append(part.slot)
            are_prompts.append(part.is_prompt)
        assert left == 0, "the parts of a row have all of its tokens"
    return replace(
        batch,
        query_lens=tuple(query_lens),
        key_lens=tuple(key_lens),
        block_tables=batch.block_tables[owners],
        adapters=tuple(batch.adapters[index] for index in owners) if batch.adapters else (),
        output_lens=None if batch.output_lens is None else tuple(output_lens),
        state_sources=tuple(sources),
        state_slots=tuple(slots),
        chunked_rows=tuple(are_prompts),
    )
