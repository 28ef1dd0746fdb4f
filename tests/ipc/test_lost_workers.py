"""Requests of a lost worker: those that produced nothing are sent again, once; the others fail."""

from __future__ import annotations

import asyncio
import time

import pytest

from server.errors import NotReady
from server.ipc.client import call as module
from server.ipc.client.call import Call
from server.ipc.client.client import EngineClient
from server.ipc.wire.encode_messages import Encode, Encoded, EncodeItem
from server.ipc.wire.generate_messages import Finished, Generate, GenerateRow, PromptScored, Tokens, Vocabulary
from server.ipc.wire.message_base import Message
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.step_messages import Abort, Failed, Stats, StepOutput
from tests.ipc.observing import Recorder, submit
from tests.ipc.test_client import DECODER, ENCODER, SEQ2SEQ, finished


class Workers:
    """An engine client with fake workers. sent: messages that each worker got, by its epoch."""

    def __init__(self, *epochs: int, requests: int = 1000) -> None:
        self.recorder = Recorder()
        self.client = EngineClient(self.recorder, requests, 100_000, stale_seconds=3600.0)
        self.sent: dict[int, list[Message]] = {}
        for epoch in epochs:
            self.ready(epoch)

    def ready(self, epoch: int) -> None:
        self.sent[epoch] = []
        self.client.on_ready([DECODER, SEQ2SEQ, ENCODER], "cpu", self.sent[epoch].append, epoch)

    def submit(self, prompts: int = 1, tokens: int = 10, first: int = 5) -> Call:
        return submit(self.client, self.generate(prompts, tokens, first))

    def generate(self, prompts: int = 1, tokens: int = 10, first: int = 5) -> Generate:
        rows = [GenerateRow(self.client.next_id(), 4, index) for index in range(prompts)]
        return Generate("decoder", GenerationParams(), [[first + index] * tokens for index in range(prompts)], rows)

    def encode(self, texts: int, tokens: int = 2) -> Call:
        items = [EncodeItem([index + 1] * tokens) for index in range(texts)]
        return submit(self.client, Encode(self.client.next_id(), "encoder", "embed", items))

    def output(self, epoch: int, **events: list) -> None:
        self.client.on_output(StepOutput(epoch, **events))

    def rows(self, epoch: int) -> list[tuple[int, list[int]]]:
        """Sequence id and prompt of each row that was sent to a worker."""
        return [
            (row.sequence_id, message.prompts[row.prompt])
            for message in self.sent[epoch]
            if isinstance(message, Generate)
            for row in message.rows
        ]

    @property
    def waiting(self) -> tuple[int, int]:
        return self.client.queue.requests, self.client.queue.tokens


async def codes(call: Call) -> list[str]:
    """Wait until all sequences of a call have ended. Returns the failure code or the type of each event."""
    found = []
    while events := await call.events():
        found += [event.code if isinstance(event, Failed) else type(event).__name__ for _, event in events]
    return found


async def test_a_request_without_output_moves_to_another_worker() -> None:
    workers = Workers(1, 2)
    call, other = workers.submit(), workers.submit()
    assert [id for id, _ in workers.rows(1)] == [1] and [id for id, _ in workers.rows(2)] == [2]
    waiting = workers.waiting
    workers.client.on_lost(1)
    assert workers.rows(2) == [(2, [5] * 10), (1, [5] * 10)] and workers.waiting == waiting
    workers.output(2, finished=[finished(1, 7), finished(2, 8)])
    assert await codes(call) == ["Finished"] and await codes(other) == ["Finished"]
    assert workers.waiting == (0, 0) and workers.client.num_open_sequences == 0 and workers.recorder.lost == 1
    assert len(workers.recorder.admitted) == 2, "a request that moves is admitted once"


async def test_a_request_without_output_waits_for_the_next_worker() -> None:
    workers = Workers(1)
    call = workers.submit(prompts=2)
    workers.client.on_lost(1)
    with pytest.raises(NotReady):
        workers.submit()
    workers.ready(2)
    assert workers.rows(2) == [(1, [5] * 10), (2, [6] * 10)]
    workers.output(2, finished=[finished(1, 7), finished(2, 7)])
    assert await codes(call) == ["Finished", "Finished"]


async def test_a_request_for_a_model_on_demand_waits_for_a_worker_that_has_it() -> None:
    """The request held its loaded model while its text was tokenized. Meanwhile the only worker has died."""
    workers = Workers(1)
    workers.client.on_lost(1)
    call, left, large = (Call(workers.client) for _ in range(3))
    for each in (call, left, large):
        each.awaits_models = True
    call.submit(workers.generate(prompts=2))
    left.submit(workers.generate())
    large.submit(workers.generate(prompts=1000, tokens=50))
    assert workers.waiting == (3, 30), "a large request enters the queue in parts"
    left.close()
    assert workers.waiting == (2, 20)
    workers.ready(2)
    await asyncio.sleep(0)
    rows = workers.rows(2)
    assert [id for id, _ in rows if id in (1, 2, 3)] == [1, 2] and len(rows) > 2
    workers.output(2, finished=[finished(1, 7), finished(2, 7)])
    assert await codes(call) == ["Finished", "Finished"]
    large.close()
    for _ in range(8):
        await asyncio.sleep(0)
    assert workers.waiting == (0, 0)


async def test_a_request_for_a_model_that_no_worker_ever_had_does_not_wait() -> None:
    workers = Workers()
    call = Call(workers.client)
    call.awaits_models = True
    with pytest.raises(NotReady):
        call.submit(workers.generate())


async def test_a_request_with_output_fails_at_once() -> None:
    workers = Workers(1, 2)
    begun, scored = workers.submit(), workers.submit()
    workers.output(1, tokens=[Tokens(1, [7])])
    workers.output(2, prompts=[PromptScored(2, [])])
    workers.client.on_lost(1)
    workers.client.on_lost(2)
    assert workers.client.num_open_sequences == 0
    assert await codes(begun) == ["Tokens", "engine_error"]
    assert await codes(scored) == ["PromptScored", "engine_error"]
    workers.ready(3)
    assert workers.rows(3) == [] and workers.waiting == (0, 0)


async def test_a_request_fails_as_a_whole_when_one_row_had_output() -> None:
    workers = Workers(1, 2)
    call = workers.submit(prompts=3)
    workers.output(1, tokens=[Tokens(2, [7])])
    workers.client.on_lost(1)
    assert await codes(call) == ["Tokens", "engine_error", "engine_error", "engine_error"]
    assert workers.rows(2) == [] and workers.client.num_open_sequences == 0


async def test_a_finished_row_does_not_keep_the_others_from_moving() -> None:
    workers = Workers(1, 2)
    call = workers.submit(prompts=3)
    workers.output(1, finished=[finished(2, 7)])
    workers.client.on_lost(1)
    assert workers.rows(2) == [(1, [5] * 10), (3, [7] * 10)]
    workers.output(2, finished=[finished(1, 8), finished(3, 8)])
    assert await codes(call) == ["Finished"] * 3


async def test_a_request_moves_once() -> None:
    workers = Workers(1, 2, 3)
    call = workers.submit()
    workers.client.on_lost(1)
    workers.client.on_lost(2)
    assert workers.rows(2) == [(1, [5] * 10)] and workers.rows(3) == []
    assert await codes(call) == ["engine_error"]


async def test_late_events_of_a_lost_worker_are_dropped() -> None:
    workers = Workers(1, 2)
    call = workers.submit()
    workers.client.on_lost(1)
    workers.output(1, tokens=[Tokens(1, [7])], finished=[finished(1, 7)])
    workers.output(2, finished=[finished(1, 8)])
    found = [event for _, event in await call.events()]
    assert [event.hypotheses[0].token_ids for event in found if isinstance(event, Finished)] == [[8]]
    assert len(found) == 1


async def test_an_encode_is_repeated_without_its_answered_items() -> None:
    workers = Workers(1, 2)
    call = workers.encode(4)
    workers.output(1, encoded=[Encoded(1, 1, b"b"), Encoded(1, 2, b"c")])
    workers.client.on_lost(1)
    (again,) = workers.sent[2]
    assert isinstance(again, Encode) and [item.token_ids for item in again.items] == [[1, 1], [4, 4]]
    assert workers.waiting == (2, 4)
    workers.output(2, encoded=[Encoded(1, 1, b"d"), Encoded(1, 0, b"a")])
    found: dict[int, bytes] = {}
    while events := await call.events():
        found |= {event.index: event.values for _, event in events if isinstance(event, Encoded)}
    assert found == {0: b"a", 1: b"b", 2: b"c", 3: b"d"} and workers.waiting == (0, 0)


async def test_a_client_that_leaves_while_its_request_waits_for_a_worker_is_forgotten() -> None:
    workers = Workers(1)
    gone, staying = workers.submit(), workers.submit()
    workers.client.on_lost(1)
    gone.leave()
    workers.ready(2)
    assert workers.rows(2) == [(2, [5] * 10)] and not any(isinstance(message, Abort) for message in workers.sent[2])
    staying.close()
    assert workers.waiting == (0, 0)


async def test_a_request_that_waits_for_a_worker_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_SLACK_SECONDS", 0.01)
    workers = Workers(1)
    call = submit(workers.client, workers.generate(), deadline=time.monotonic() + 0.02)
    workers.client.on_lost(1)
    assert await codes(call) == ["timeout"] and workers.waiting == (0, 0)


async def test_unsent_parts_wait_for_the_next_worker() -> None:
    workers = Workers(1, requests=16)
    call = workers.submit(prompts=7)
    assert len(workers.rows(1)) == 4
    workers.client.on_lost(1)
    workers.ready(2)
    assert [id for id, _ in workers.rows(2)] == [1, 2, 3, 4]
    workers.output(2, finished=[finished(id, 7) for id in (1, 2, 3, 4)])
    workers.output(2, finished=[finished(id, 7) for id in (5, 6, 7)])
    assert await codes(call) == ["Finished"] * 7


async def test_every_worker_gets_each_vocabulary_once() -> None:
    workers = Workers(1, 2)
    for _ in range(2):
        workers.client.add_vocabulary(Vocabulary("decoder", [b"a"]))
    workers.ready(3)
    assert all(len(sent) == 1 and isinstance(sent[0], Vocabulary) for sent in workers.sent.values())


async def test_a_retired_worker_gets_no_requests_and_finishes_its_own() -> None:
    workers = Workers(1, 2)
    call = workers.submit()
    workers.client.retire(1)
    workers.submit()
    workers.submit()
    assert len(workers.rows(1)) == 1 and workers.client.open_on(1) == 1
    workers.output(1, finished=[finished(1, 7)])
    assert workers.client.open_on(1) == 0 and await codes(call) == ["Finished"]
    workers.client.on_stopped(1)
    assert workers.recorder.lost == 0


async def test_requests_that_outlast_a_retired_worker_move_or_fail() -> None:
    workers = Workers(1)
    begun, waiting = workers.submit(), workers.submit()
    workers.output(1, tokens=[Tokens(1, [7])])
    workers.ready(2)
    workers.client.retire(1)
    workers.client.on_stopped(1)
    assert await codes(begun) == ["Tokens", "engine_error"] and workers.rows(2) == [(2, [5] * 10)]
    waiting.close()


async def test_statistics_are_sums_over_the_workers_and_counters_count_once() -> None:
    workers = Workers(1, 2)

    def report(epoch: int, running: int, preemptions: int) -> Stats:
        workers.client.on_stats(
            Stats(epoch, running, 1, 5, {"self": running}, {"self": 8}, {"resident": 100}, preemptions=preemptions)
        )
        return workers.recorder.stats[-1]

    assert report(1, 3, 7).running == 3
    total = report(2, 4, 1)
    assert (total.running, total.waiting, total.queue_tokens) == (7, 2, 10)
    assert (total.kv_blocks_used, total.kv_blocks_total) == ({"self": 7}, {"self": 16})
    assert total.device_memory_bytes == {"resident": 200}
    workers.client.on_lost(2)
    assert workers.recorder.stats[-1].running == 3
    assert sum(stats.preemptions for stats in workers.recorder.stats) == 8
    count = len(workers.recorder.stats)
    report(2, 9, 9)
    assert len(workers.recorder.stats) == count, "the worker was lost"


async def test_a_lost_worker_wakes_its_readers_in_the_same_turn() -> None:
    workers = Workers(1, 2)
    call = workers.submit()
    workers.output(1, tokens=[Tokens(1, [7])])
    await call.events()
    reader = asyncio.create_task(call.events())
    await asyncio.sleep(0)
    workers.client.on_lost(1)
    await asyncio.sleep(0)
    assert reader.done()
