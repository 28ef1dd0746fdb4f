"""A burst of requests is sent to an idle worker in one write; a busy worker gets every message immediately."""

from __future__ import annotations

import asyncio
import time

from server.ipc.client.call import Call
from server.ipc.client.client import EngineClient
from server.ipc.wire.generate_messages import Generate, Tokens
from server.ipc.wire.message_base import Message
from server.ipc.wire.step_messages import Abort, StepOutput
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
    return message.rows[0].sequence_id if isinstance(message, Generate) else message.sequence_id


async def iterations(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_single_request_is_sent_after_a_few_iterations_of_the_loop() -> None:
    bench = Bench()
    bench.submit()
    assert bench.ids == []
    await iterations(4)
    assert bench.ids == [[1]]


async def test_a_burst_is_sent_in_one_write() -> None:
    bench = Bench()
    for _ in range(5):
        bench.submit()
        await iterations(2)
    assert bench.ids == []
    await iterations(4)
    assert bench.ids == [[1, 2, 3, 4, 5]]


async def test_messages_to_a_busy_worker_are_sent_at_once() -> None:
    bench = Bench()
    bench.submit()
    await iterations(4)
    call = bench.submit()
    bench.client.on_output(StepOutput(1, tokens=[Tokens(1, [7])]))
    call.close()
    assert bench.ids == [[1], [2], [2]]
    bench.client.on_output(StepOutput(1, finished=[finished(1, 7)]))
    bench.submit()
    assert len(bench.ids) == 3, "the worker is idle again"


async def test_an_abort_is_sent_after_its_request() -> None:
    bench = Bench()
    bench.submit().close()
    await iterations(4)
    assert [type(message) for message in bench.writes[0]] == [Generate, Abort] and bench.ids == [[1, 1]]


async def test_requests_wait_for_tokenization_of_others_up_to_the_limit() -> None:
    bench = Bench()
    with bench.client.preparing():
        bench.submit()
        await asyncio.sleep(0.01)
        assert bench.ids == []
        bench.submit()
    while not bench.ids:
        await asyncio.sleep(0.001)
    assert bench.ids == [[1, 2]]
    limited = Bench(0.005)
    started = time.monotonic()
    with limited.client.preparing():
        limited.submit()
        while not limited.ids:
            await asyncio.sleep(0.001)
    assert time.monotonic() - started >= 0.005


async def test_held_messages_of_a_lost_worker_go_to_the_next_one() -> None:
    bench = Bench()
    bench.submit()
    bench.client.on_lost()
    bench.client.on_ready([DECODER], "cpu", bench.send, 2)
    bench.submit()
    await iterations(4)
    assert bench.ids[-1] == [1, 2]
