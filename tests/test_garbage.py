"""Full garbage collections run between requests, and not too late."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from server.system import garbage
from server.system.garbage import collect_if_due, collect_when_cheap


class _Cycle:
    """An object that only the garbage collector can free."""

    freed = 0

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        _Cycle.freed += 1


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Prevent other garbage collections during the test, and exclude objects that already exist."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 1000, 1000)
    _Cycle.freed = 0
    yield
    gc.set_threshold(*thresholds)


def _old_cycle(rounds: int) -> None:
    """Make a cycle of references that has survived `rounds` collections of the younger generations."""
    cycle = _Cycle()
    for _ in range(rounds):
        gc.collect(1)
    del cycle


def test_nothing_is_collected_while_little_was_allocated() -> None:
    _old_cycle(garbage.MIN_ROUNDS - 1)
    assert not collect_if_due() and not _Cycle.freed


def test_cycles_are_freed_between_requests() -> None:
    _old_cycle(garbage.MIN_ROUNDS)
    assert collect_if_due() and _Cycle.freed == 1


def test_objects_are_not_counted_while_requests_hold_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[bool] = []
    monkeypatch.setattr(garbage, "_is_cheap", lambda: counted.append(True) or True)
    _old_cycle(garbage.MIN_ROUNDS)
    assert not collect_if_due(garbage.MAX_BLOCKS + 1) and not counted and not _Cycle.freed
    assert collect_if_due(garbage.MAX_BLOCKS) and counted and _Cycle.freed == 1


def test_a_collection_waits_while_requests_hold_many_objects_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "MAX_OBJECTS", 1000)
    held = [[[]] for _ in range(1000)]
    _old_cycle(garbage.MIN_ROUNDS)
    assert not collect_if_due() and not _Cycle.freed
    assert not collect_if_due(overdue_checks=garbage.MAX_OVERDUE_CHECKS - 1) and not _Cycle.freed
    assert collect_if_due(overdue_checks=garbage.MAX_OVERDUE_CHECKS) and _Cycle.freed == 1
    assert len(held) == 1000


async def test_a_collection_runs_when_it_has_been_overdue_for_some_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(garbage, "_is_cheap", lambda: False)
    monkeypatch.setattr(garbage, "MAX_ROUNDS", 30)
    task = asyncio.create_task(collect_when_cheap())
    await asyncio.sleep(0)
    _old_cycle(29)
    for _ in range(3 * garbage.MAX_OVERDUE_CHECKS):
        await asyncio.sleep(0)
    assert not _Cycle.freed
    gc.collect(1)
    for _ in range(3 * garbage.MAX_OVERDUE_CHECKS):
        await asyncio.sleep(0)
    assert _Cycle.freed == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_long_lists_of_numbers_count_as_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "MAX_OBJECTS", 1000)
    held = [1] * (1001 * garbage.ITEMS_PER_OBJECT)
    _old_cycle(garbage.MIN_ROUNDS)
    assert not collect_if_due()
    held.clear()
    assert collect_if_due() and _Cycle.freed == 1


async def test_python_starts_no_full_collection_while_the_task_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "CHECK_SECONDS", 0.0)
    gc.set_threshold(700, 10, 10)
    task = asyncio.create_task(collect_when_cheap())
    await asyncio.sleep(0)
    assert gc.get_threshold() == (700, 10, garbage._NEVER)
    _old_cycle(garbage.MIN_ROUNDS)
    while not _Cycle.freed:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gc.get_threshold() == (700, 10, 10)
