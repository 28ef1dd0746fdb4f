"""The rows of a large message become sequence groups in parts, so that no step waits for all of them."""

from __future__ import annotations

import pytest

from server.engine.stepping.arriving_rows import ArrivingRows
from server.engine.stepping.engine import Engine
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from tests.engine.grammars import random_engine

ROWS = 64
"""Largest number of rows in a step of `random_engine`."""


def message(first: int, rows: int, call_id: int, key: str = "", new: int = 1) -> Generate:
    made = [GenerateRow(sequence_id, new) for sequence_id in range(first, first + rows)]
    return Generate("random", GenerationParams(), [[5, 6, 7]], made, call_id=call_id, key=key)


def ids(rows: list[GenerateRow]) -> list[int]:
    return [row.sequence_id for row in rows]


def ended(engine: Engine, steps: int = 1) -> list[int]:
    """Run `steps` steps. Returns the ids of the sequences that end in them."""
    outputs = [engine.step() for _ in range(steps)]
    return [event.sequence_id for output in outputs if output is not None for event in output.finished]


def test_each_step_makes_the_groups_of_one_step() -> None:
    engine = random_engine()
    scheduler = engine.models["random"].generation.scheduler
    for part in range(4):
        engine.add(message(1 + 500 * part, 500, call_id=1))
    assert not scheduler.waiting and engine.has_work
    assert engine.stats().waiting == 2000 and engine.stats().queue_tokens == 3 * 2000
    found = ended(engine)
    assert found == list(range(1, 1 + ROWS)), "a step lacks no rows"
    assert not scheduler.waiting and engine.stats().waiting == 2000 - ROWS
    while engine.has_work:
        found += ended(engine)
    assert found == list(range(1, 2001)) and engine.stats().waiting == 0


def test_a_short_request_does_not_wait_for_large_messages() -> None:
    engine = random_engine()
    for part in range(15):
        engine.add(message(1 + 500 * part, 500, call_id=1))
    ended(engine, steps=2)
    engine.add(message(10_000, 1, call_id=2))
    assert 10_000 in ended(engine)


def test_keys_and_calls_take_turns() -> None:
    rows = ArrivingRows()
    rows.add(message(1, 300, call_id=1, key="a"))
    rows.add(message(1001, 300, call_id=2, key="a"))
    rows.add(message(2001, 300, call_id=3, key="b"))
    parts = [rows.next(100) for _ in range(9)]
    assert [part[0].sequence_id // 1000 for _, part in parts[:6]] == [0, 2, 1, 2, 0, 2]
    every = [sequence_id for _, part in parts for sequence_id in ids(part)]
    assert sorted(every) == [*range(1, 301), *range(1001, 1301), *range(2001, 2301)]
    assert not rows


def test_an_aborted_row_never_runs() -> None:
    engine = random_engine()
    engine.add(message(1, 200, call_id=1))
    for sequence_id in (2, 150, 200):
        engine.abort(sequence_id)
    found = ended(engine, steps=6)
    assert found == [row for row in range(1, 201) if row not in (2, 150, 200)] and not engine.has_work


def test_a_call_that_is_aborted_leaves_nothing() -> None:
    engine = random_engine()
    engine.add(message(1, 200, call_id=1))
    for sequence_id in range(1, 201):
        engine.abort(sequence_id)
    assert not engine.has_work and engine.step() is None


def test_the_rows_of_a_model_that_is_removed_are_dropped() -> None:
    engine = random_engine()
    engine.add(message(1, 200, call_id=1))
    engine.remove_model("random")
    assert not engine.has_work and engine.stats().waiting == 0


@pytest.mark.parametrize("rows", [ROWS + 1, 3 * ROWS + 2])
def test_the_last_part_of_a_long_message_is_not_a_short_request(rows: int) -> None:
    engine = random_engine()
    engine.add(message(1, rows, call_id=1))
    while engine.has_work:
        engine.step()
        assert not engine.models["random"].generation.scheduler.running_rows.num_short
    engine.add(message(5000, 2, call_id=2, new=9))
    engine.step()
    assert engine.models["random"].generation.scheduler.running_rows.num_short == 2


def test_an_invalid_message_fails_at_once() -> None:
    engine = random_engine()
    engine.add(Generate("random", GenerationParams(), [[-1]], message(1, 200, call_id=1).rows))
    output = engine.step()
    assert output is not None and len(output.failed) == 200 and not engine.has_work
