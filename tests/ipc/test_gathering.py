"""Requests that come together go to an idle worker in one write; a lone one, and all to a busy worker, at once."""

from __future__ import annotations

import asyncio
import time

from server.ipc.call import Call
from server.ipc.client import EngineClient
from server.ipc.messages import (
    Abort,
    Generate,
    Message,
    StepOutput,
    Tokens,
)
from tests.ipc.observing import Recorder, submit
from tests.ipc.one_row import one_row
from tests.ipc.test_client import DECODER, finished


class Bench:
    def __init__(self, seconds: float = 10.0) -> None:
        self.client = EngineClient(Recorder(), 100, 1000, seconds)
        self.writes: list[list[Message]] = []
        self.client.on_ready([DECODER], "cpu", self.send)

    def send(self, *messages: Message) -> None:
        self.writes.append(list(messages))

    def submit(self) -> Call:
        return submit(self.client, one_row(self.client.next_id(), "decoder", [5], max_new_tokens=4))

    @property
    def ids(self) -> list[list[int]]:
        return [[_id_of(message) for message in write] for write in self.writes]


def _id_of(message: Message) -> int:
    assert isinstance(message, Generate | Abort)
    return message.rows[0].request_id if isinstance(message, Generate) else message.request_id


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_lone_request_waits_for_a_few_turns_of_the_loop_only() -> None:
    bench = Bench()
    bench.submit()
    assert bench.ids == []
    await turns(4)
    assert bench.ids == [[1]]


async def test_what_comes_turn_after_turn_leaves_together() -> None:
    bench = Bench()
    for _ in range(5):
        bench.submit()
        await turns(2)
    assert bench.ids == []
    await turns(4)
    assert bench.ids == [[1, 2, 3, 4, 5]]


async def test_a_busy_worker_gets_everything_at_once() -> None:
    bench = Bench()
    bench.submit()
    await turns(4)
    call = bench.submit()
    bench.client.on_output(StepOutput(1, tokens=[Tokens(1, [7])]))
    call.close()
    assert bench.ids == [[1], [2], [2]]
    bench.client.on_output(StepOutput(1, finished=[finished(1, 7)]))
    bench.submit()
    assert len(bench.ids) == 3, "the worker is idle again"


async def test_an_abort_does_not_overtake_its_request() -> None:
    bench = Bench()
    bench.submit().close()
    await turns(4)
    assert [type(message) for message in bench.writes[0]] == [Generate, Abort] and bench.ids == [[1, 1]]


async def test_a_text_that_is_still_worked_on_is_waited_for_but_not_for_long() -> None:
    bench = Bench()
    with bench.client.preparing():
        bench.submit()
        await asyncio.sleep(0.01)
        assert bench.ids == []
        bench.submit()
    while not bench.ids:
        await asyncio.sleep(0.001)
    assert bench.ids == [[1, 2]]
    impatient = Bench(0.005)
    started = time.monotonic()
    with impatient.client.preparing():
        impatient.submit()
        while not impatient.ids:
            await asyncio.sleep(0.001)
    assert time.monotonic() - started >= 0.005


async def test_a_lost_worker_gets_nothing_more() -> None:
    bench = Bench()
    call = bench.submit()
    bench.client.on_lost()
    ((_, event),) = await call.events()
    assert event.code == "engine_error"
    await turns(4)
    other: list[tuple[Message, ...]] = []
    bench.client.on_ready([DECODER], "cpu", lambda *messages: other.append(messages))
    bench.submit()
    await turns(4)
    assert len(other) == 1 and len(other[0]) == 1
