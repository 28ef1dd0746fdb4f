"""Rows of calls with thousands of rows are sent, dropped and failed in several iterations of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from server.ipc.client import call as call_module
from server.ipc.client import submission
from server.ipc.client.call import Call
from server.ipc.client.client import ROWS_PER_TURN, EngineClient
from server.ipc.client.submission import pick_rows
from server.ipc.wire import fit
from server.ipc.wire.generate_messages import Generate, GenerateRow, Tokens
from server.ipc.wire.message_base import Message
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.step_messages import Abort, Failed, StepOutput
from server.ipc.wire.time_limits import TimeLimit
from server.ipc.workers.worker_protocol import WorkerProtocol
from server.operations.generating.generation_run import TextRun
from tests.ipc.test_client import DECODER, Recorder

ROWS = 4096


class Sent(list[Message]):
    """The messages to the worker. most_in_turn: most rows and aborts in one iteration of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.most_in_turn = self._in_turn = 0

    def __call__(self, *messages: Message) -> None:
        if not self._in_turn:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self.extend(messages)
        self._in_turn += sum(len(posted.rows) if isinstance(posted, Generate) else 1 for posted in messages)
        self.most_in_turn = max(self.most_in_turn, self._in_turn)

    def _end_turn(self) -> None:
        self._in_turn = 0

    @property
    def rows(self) -> list[int]:
        return [row.sequence_id for posted in self if isinstance(posted, Generate) for row in posted.rows]

    @property
    def aborts(self) -> list[int]:
        return [posted.sequence_id for posted in self if isinstance(posted, Abort)]


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def client(sent: Sent) -> EngineClient:
    made = EngineClient(Recorder(), 4 * ROWS, 1 << 20)
    made.on_ready([DECODER], "cpu", sent)
    return made


def message(call: Call) -> Generate:
    rows = [GenerateRow(call.next_id(), 1) for _ in range(ROWS)]
    return Generate(DECODER.name, GenerationParams(), [[1, 2]], rows)


async def turns(client: EngineClient, sent: Sent) -> None:
    """Run iterations of the event loop until no further messages are sent."""
    before = -1
    while before != len(sent):
        before = len(sent)
        for _ in range(3):
            await asyncio.sleep(0)


async def test_rows_are_sent_over_several_turns(client: EngineClient, sent: Sent) -> None:
    with Call(client) as call:
        asked = message(call)
        call.submit(asked)
        assert client.queue.requests == ROWS and len(sent.rows) == ROWS_PER_TURN
        await turns(client, sent)
        assert sent.rows == [row.sequence_id for row in asked.rows]
        assert sent.most_in_turn <= 2 * ROWS_PER_TURN
        assert len({sent_message.call_id for sent_message in sent if isinstance(sent_message, Generate)}) == 1
    await turns(client, sent)
    assert sorted(sent.aborts) == sorted(sent.rows) and sent.most_in_turn <= 2 * ROWS_PER_TURN
    assert client.queue.requests == client.queue.tokens == client.num_open_sequences == 0


async def test_calls_beyond_their_share_of_the_queue_are_sent_over_several_turns(sent: Sent) -> None:
    client = EngineClient(Recorder(), 4 * ROWS, 4 * ROWS)
    client.on_ready([DECODER], "cpu", sent)
    calls = [Call(client) for _ in range(4)]
    for call in calls:
        call.submit(message(call))
        await turns(client, sent)
    assert ROWS < len(sent.rows) < 4 * ROWS and sent.most_in_turn <= 2 * ROWS_PER_TURN
    # All rows start at once, which makes room for the others.
    client.on_output(StepOutput(1, tokens=[Tokens(sequence_id, [5]) for sequence_id in sent.rows]))
    await turns(client, sent)
    assert len(sent.rows) == 4 * ROWS and sent.most_in_turn <= 2 * ROWS_PER_TURN
    for call in calls:
        call.close()
    await turns(client, sent)
    assert client.queue.requests == client.queue.tokens == client.num_open_sequences == 0


async def test_rows_of_a_large_call_are_copied_when_they_are_sent(
    client: EngineClient, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []

    def pick(whole: Generate, rows: list[GenerateRow]) -> Generate:
        copied.append(len(rows))
        return pick_rows(whole, rows)

    monkeypatch.setattr(submission, "pick_rows", pick)
    checked: list[int] = []
    monkeypatch.setattr(fit, "check_fit", lambda info, whole, row: checked.append(row.sequence_id))
    with Call(client) as call:
        call.submit(message(call))
        assert copied == [ROWS_PER_TURN] and len(checked) == 1
        await turns(client, sent)
        assert sum(copied) == ROWS


async def test_time_limits_of_many_large_calls_take_turns(
    client: EngineClient, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = asyncio.Event()
    waiting: list[int] = []

    async def next_iteration() -> None:
        waiting.append(1)
        await turn.wait()

    monkeypatch.setattr(call_module, "next_iteration", next_iteration)
    large, small = Call(client), Call(client)
    large.submit(message(large))
    small.submit(Generate(DECODER.name, GenerationParams(), [[1, 2]], [GenerateRow(small.next_id(), 1)]))
    limit = TimeLimit(0.0, "timeout", "the deadline passed")
    for each in (large, small):
        each._expire(limit)
    await asyncio.sleep(0)
    assert waiting == [1] and large._open and not small._open
    turn.set()
    await turns(client, sent)
    assert len(await large.events()) == ROWS and client.num_open_sequences == client.queue.requests == 0


async def test_many_calls_that_end_together_share_the_turns(client: EngineClient, sent: Sent) -> None:
    calls = [Call(client) for _ in range(4)]
    for call in calls:
        call.submit(message(call))
    await turns(client, sent)
    for call in calls:
        call.leave()
    assert client.num_open_sequences == 0, "no event reaches a call that has ended"
    await turns(client, sent)
    assert len(sent.aborts) == 4 * ROWS and sent.most_in_turn <= 5 * ROWS_PER_TURN
    assert client.queue.requests == client.queue.tokens == 0


async def test_rows_that_were_not_sent_leave_the_queue(client: EngineClient, sent: Sent) -> None:
    call = Call(client)
    call.submit(message(call))
    call.close()
    await turns(client, sent)
    assert len(sent.rows) == len(sent.aborts) == ROWS_PER_TURN
    assert client.queue.requests == client.queue.tokens == client.num_open_sequences == 0


async def test_a_call_with_many_rows_fails_as_a_whole(client: EngineClient, sent: Sent) -> None:
    with Call(client) as call:
        call.submit(message(call))
        await turns(client, sent)
        client.fail_all("timeout", "the deadline passed")
        events = await call.events()
        assert len(events) == ROWS and all(isinstance(event, Failed) for _, event in events)
        await turns(client, sent)
        assert len(sent.aborts) == ROWS and client.queue.requests == 0


async def test_a_lost_worker_does_not_stop_the_rows_that_were_not_sent(client: EngineClient, sent: Sent) -> None:
    with Call(client) as call:
        call.submit(message(call))
        client.on_lost()
        await turns(client, sent)
        again = Sent()
        client.on_ready([DECODER], "cpu", again, 2)
        await turns(client, again)
        assert len(again.rows) == ROWS


class CountedItems(list[int]):
    """A list that counts how often a loop over it starts. passes: this count."""

    passes = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.passes += 1
        return super().__iter__()


async def test_thousands_of_failures_do_not_each_search_all_rows(client: EngineClient, sent: Sent) -> None:
    items = CountedItems(range(ROWS))
    with Call(client) as call:
        asked = message(call)
        call.submit(asked)
        await turns(client, sent)
        run = TextRun(call, [[] for _ in range(ROWS)], items=items)
        failing = asyncio.create_task(run.complete())
        await asyncio.sleep(0)
        client.on_output(StepOutput(1, failed=[Failed(row.sequence_id, "engine_error", "x") for row in asked.rows[1:]]))
        await asyncio.sleep(0)
        assert len(run.failures) == ROWS - 1 and items.passes <= 2
        failing.cancel()


async def test_messages_of_many_steps_are_handled_in_turns_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from server.ipc.wire.frames import encode_frame
    from server.ipc.workers import worker_protocol

    monkeypatch.setattr(worker_protocol, "TURN_SECONDS", 0.0)
    seen: list[object] = []
    connection = WorkerProtocol(seen.append)
    frames = b"".join(encode_frame(StepOutput(number)) for number in range(5))
    connection.data_received(frames)
    assert not seen
    monkeypatch.setattr(worker_protocol, "TURN_SECONDS", 1.0)
    connection.data_received(encode_frame(StepOutput(5)))
    await asyncio.sleep(0)
    assert [output.epoch for output in seen] == list(range(6))  # type: ignore[attr-defined]
    monkeypatch.setattr(worker_protocol, "TURN_SECONDS", 0.0)
    connection.data_received(frames)
    connection.connection_lost(None)
    assert len(seen) == 11


async def test_a_client_that_leaves_is_counted_in_one_piece(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a client that disconnects are counted together. One call per row would take 40 ms for 8,000 rows."""
    counted: list[tuple[str, int]] = []
    monkeypatch.setattr(client._observer, "on_cancelled", lambda stage, rows: counted.append((stage, rows)))
    call = Call(client, None)
    call.submit(message(call))
    call.leave()
    assert sum(rows for _, rows in counted) == ROWS and len(counted) == 2
