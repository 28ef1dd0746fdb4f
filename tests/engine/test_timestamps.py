"""Timestamp rules equal those of transformers, for random logits after every kind of prefix."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import pytest
import torch
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from server.engine.choosing.logits_processors import ProcessorRow, process
from server.engine.choosing.timestamps import TimestampRow, _allowed
from server.engine.sequences.token_tables import TokenTables
from server.ipc.wire.params import GenerationParams, TimestampRules

END, NONE = 20, 29
FIRST, VOCAB = NONE + 1, 50
START = [21, 22]
BEGINNINGS = [
    [],
    [FIRST],
    [FIRST + 4],
    [7],
    [FIRST, 5],
    [FIRST + 2, 5, 6],
    [FIRST, 5, FIRST + 3],
    [FIRST, 5, FIRST + 3, FIRST + 3],
    [FIRST, 5, FIRST + 3, FIRST + 5],
    [FIRST, 5, FIRST + 3, FIRST + 3, 8, 9],
    [FIRST, 5, VOCAB - 1],
    [FIRST, 5, VOCAB - 1, VOCAB - 1, 4],
    [FIRST + 1, FIRST + 2],
]


def row(new: list[int], max_initial: int | None, suppress: list[int], begin: list[int]) -> ProcessorRow:
    params = GenerationParams(
        end_token_ids=[END],
        suppress_token_ids=suppress,
        begin_suppress_token_ids=begin,
        timestamps=TimestampRules(FIRST, max_initial),
    )
    return ProcessorRow(params, 30, [*START, *new], len(new), TokenTables.of(params, []))


def theirs(one: ProcessorRow, logits: torch.Tensor) -> torch.Tensor:
    rules = one.params.timestamps
    config = SimpleNamespace(
        no_timestamps_token_id=NONE,
        eos_token_id=END,
        bos_token_id=END,
        max_initial_timestamp_index=rules.max_initial,
    )
    ids, scores = torch.tensor([one.tokens]), logits[None].clone()
    scores = SuppressTokensAtBeginLogitsProcessor(one.params.begin_suppress_token_ids, len(START))(ids, scores)
    scores = SuppressTokensLogitsProcessor(one.params.suppress_token_ids)(ids, scores)
    return WhisperTimeStampLogitsProcessor(config, begin_index=len(START))(ids, scores)[0]


def mixed_rows() -> list[ProcessorRow]:
    settings = itertools.product(BEGINNINGS, (None, 0, 5), ([], [3, 21, 25]), ([], [4, END]))
    rows = [row(*setting) for setting in settings]
    random.Random(1).shuffle(rows)
    return rows


@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_all_rows_in_one_batch_equal_transformers(device: torch.device, spread: float) -> None:
    rows = mixed_rows()
    generator = torch.Generator().manual_seed(5)
    logits = (spread * torch.randn(len(rows), VOCAB, generator=generator)).to(device)
    logits[::3, FIRST:] += 2 * spread
    expected = torch.stack([theirs(timestamp_row, scores) for timestamp_row, scores in zip(rows, logits, strict=True)])
    process(logits, rows)
    torch.testing.assert_close(logits, expected, atol=0, rtol=0)
    only_times = (logits[:, :FIRST] == -torch.inf).all(dim=-1)
    assert 0 < only_times.sum() < len(rows)


def test_rows_without_timestamps_are_not_changed(device: torch.device) -> None:
    plain = ProcessorRow(GenerationParams(), 5, [1], 0, TokenTables.of(GenerationParams(), []))
    logits = torch.randn(2, VOCAB, device=device)
    before = logits.clone()
    process(logits, [plain, row([], None, [], [])])
    assert torch.equal(logits[0], before[0]) and not torch.equal(logits[1], before[1])


def test_decreasing_timestamps_are_not_allowed() -> None:
    """Timestamps may not decrease. Negative control: without earlier timestamps, the smallest timestamp is allowed."""
    after = TimestampRow(0, TimestampRules(FIRST), END, [FIRST, 5, FIRST + 3, FIRST + 3, 8])
    assert _allowed(after, VOCAB)[1] == FIRST + 4
    forgot = TimestampRow(0, TimestampRules(FIRST), END, [8])
    assert _allowed(forgot, VOCAB)[1] == FIRST
