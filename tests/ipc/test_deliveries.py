"""The events of a step with many streams are delivered in several iterations of the event loop."""

from __future__ import annotations

import asyncio
from typing import cast

from server.ipc.client.call import Call
from server.ipc.client.deliveries import MAX_CALLS, Deliveries


class FakeCall:
    def __init__(self, delivered: list[int], index: int) -> None:
        self._delivered, self._index = delivered, index

    def deliver(self) -> None:
        self._delivered.append(self._index)


def _calls(delivered: list[int], count: int) -> list[Call]:
    return [cast(Call, FakeCall(delivered, index)) for index in range(count)]


async def test_other_work_of_the_event_loop_comes_between_the_streams() -> None:
    delivered: list[int] = []
    counts: list[int] = []
    calls = _calls(delivered, 3 * MAX_CALLS)
    Deliveries().add(calls, [])
    assert delivered == list(range(MAX_CALLS)), "the first calls get their events at once"
    while len(delivered) < len(calls):
        await asyncio.sleep(0)
        counts.append(len(delivered))
    assert counts == [2 * MAX_CALLS, 3 * MAX_CALLS]


async def test_first_tokens_come_before_the_streams_of_an_earlier_step() -> None:
    delivered: list[int] = []
    calls = _calls(delivered, 2 * MAX_CALLS + 1)
    deliveries, first = Deliveries(), calls.pop()
    deliveries.add(calls, [])
    deliveries.add([first], [first])
    while len(delivered) <= len(calls):
        await asyncio.sleep(0)
    assert delivered[MAX_CALLS] == len(calls)


async def test_a_call_gets_the_events_of_two_steps_at_once() -> None:
    delivered: list[int] = []
    calls = _calls(delivered, MAX_CALLS + 1)
    deliveries = Deliveries()
    deliveries.add(calls, [])
    deliveries.add(calls, [])
    for _ in range(4):
        await asyncio.sleep(0)
    assert delivered.count(MAX_CALLS) == 1 and delivered.count(0) == 2
