"""Requests larger than their share of the queue are sent in parts, so that there is room for others."""

from __future__ import annotations

import time

import pytest

from server.errors import ClientGone, Overloaded
from server.ipc.client import call as module
from server.ipc.client import release_rate
from server.ipc.client.queue import Queue, default_limits
from server.ipc.wire.encode_messages import Encode, Encoded, EncodeItem
from server.ipc.wire.generate_messages import Finished, Generate, Tokens
from server.ipc.wire.step_messages import Failed
from tests.ipc.observing import submit
from tests.ipc.test_client import Bench, finished


def sent_rows(bench: Bench) -> list[list[tuple[int, list[int]]]]:
    """For each `Generate` message that was sent: sequence id and prompt of each of its rows."""
    return [
        [(row.sequence_id, message.prompts[row.prompt]) for row in message.rows]
        for message in bench.sent
        if isinstance(message, Generate)
    ]


def numbered(bench: Bench, count: int) -> Generate:
    """A request with `count` rows, whose prompts consist of the index of the row."""
    message = bench.generate_all([3] * count)
    for index, prompt in enumerate(message.prompts):
        prompt[:] = [index] * 3
    return message


async def test_a_large_request_is_sent_in_parts_as_earlier_ones_start() -> None:
    bench = Bench(requests=16)
    call = submit(bench.client, numbered(bench, 7))
    first = [(index + 1, [index] * 3) for index in range(4)]
    assert [row for rows in sent_rows(bench) for row in rows] == first and bench.waiting == (4, 12)
    bench.output(tokens=[Tokens(1, [9])])
    assert len(sent_rows(bench)) == 2, "a part of two rows needs room for both"
    bench.output(finished=[finished(1, 9), finished(2, 9)])
    assert sent_rows(bench)[2] == [(5, [4] * 3), (6, [5] * 3)]
    bench.output(finished=[finished(row, 9) for row in (3, 4, 5, 6)])
    assert sent_rows(bench)[3] == [(7, [6] * 3)]
    bench.output(finished=[finished(7, 9)])
    ended: list[int] = []
    while events := await call.events():
        ended += [index for index, event in events if isinstance(event, Finished)]
    assert ended == list(range(7)) and bench.waiting == (0, 0) and bench.aborted == []
    assert {message.call_id for message in bench.sent if isinstance(message, Generate)} == {1}


async def test_a_large_encode_is_sent_in_parts_and_its_items_keep_their_indices() -> None:
    bench = Bench(requests=16)
    items = [EncodeItem([index, index]) for index in range(6)]
    call = submit(bench.client, Encode(bench.client.next_id(), "encoder", "embed", items))
    sent = [message for message in bench.sent if isinstance(message, Encode)]
    assert [message.items for message in sent] == [items[:2], items[2:4]] and bench.waiting == (4, 8)
    bench.output(encoded=[Encoded(sent[1].sequence_id, 1, b""), Encoded(sent[0].sequence_id, 0, b"")])
    (last,) = [message for message in bench.sent if isinstance(message, Encode) and message not in sent]
    assert last.items == items[4:]
    bench.output(encoded=[Encoded(sent[0].sequence_id, 1, b""), Encoded(sent[1].sequence_id, 0, b"")])
    bench.output(encoded=[Encoded(last.sequence_id, index, b"") for index in (0, 1)])
    indices: list[int] = []
    while events := await call.events():
        indices += [event.index for _, event in events if isinstance(event, Encoded)]
    assert indices == [3, 0, 1, 2, 4, 5] and bench.waiting == (0, 0)


async def test_a_large_request_leaves_room_for_others() -> None:
    bench = Bench(requests=8)
    large = submit(bench.client, numbered(bench, 100))
    assert bench.waiting[0] == 2
    small = [bench.submit() for _ in range(6)]
    with pytest.raises(Overloaded):
        bench.submit()
    large.close()
    assert bench.waiting[0] == 6
    for call in small:
        call.close()


async def test_parts_wait_while_others_fill_the_queue() -> None:
    bench = Bench(requests=8)
    large = submit(bench.client, numbered(bench, 4))
    others = [bench.submit() for _ in range(6)]
    sent = len(sent_rows(bench))
    bench.output(tokens=[Tokens(1, [9])])
    assert len(sent_rows(bench)) == sent + 1, "the part takes the room that its first row has left"
    bench.output(finished=[finished(2, 9)])
    assert bench.waiting[0] == 8 and len(sent_rows(bench)) == sent + 2
    assert len(others) == 6 and large


async def test_a_room_that_another_call_leaves_is_used() -> None:
    bench = Bench(requests=4)
    other = [bench.submit() for _ in range(3)]
    submit(bench.client, numbered(bench, 2))
    bench.output(tokens=[Tokens(4, [9])])
    assert sent_rows(bench)[-1] == [(5, [1] * 3)]
    other[0].close()
    assert bench.waiting[0] == 3


async def test_a_client_that_leaves_takes_its_unsent_parts_with_it() -> None:
    bench = Bench(requests=16)
    call = submit(bench.client, numbered(bench, 50))
    bench.output(tokens=[Tokens(1, [9])])
    sent = len(sent_rows(bench))
    call.leave()
    with pytest.raises(ClientGone):
        await call.events()
    assert len(sent_rows(bench)) == sent and bench.waiting == (0, 0)
    assert sorted(bench.aborted) == [1, 2, 3, 4]
    assert sorted(bench.recorder.cancelled) == ["running", *["waiting"] * 49]


async def test_a_lost_worker_fails_the_unsent_parts_of_a_request_with_output() -> None:
    bench = Bench(requests=16)
    call = submit(bench.client, numbered(bench, 9))
    bench.output(tokens=[Tokens(1, [9])])
    bench.client.on_lost()
    events = await call.events()
    assert [index for index, event in events if isinstance(event, Failed)] == list(range(9))
    assert bench.waiting == (0, 0)
    bench.client.on_ready([*bench.client.models.values()], "cpu", bench.sent.append)
    bench.output()
    assert [row for rows in sent_rows(bench) for row, _ in rows] == [1, 2, 3, 4]


async def test_the_deadline_ends_unsent_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_SLACK_SECONDS", 0.01)
    bench = Bench(requests=4)
    call = submit(bench.client, numbered(bench, 3), deadline=time.monotonic() + 0.02)
    assert [event.code for _, event in await call.events() if isinstance(event, Failed)] == ["timeout"] * 3


async def test_statistics_count_unsent_sequences() -> None:
    from server.ipc.wire.step_messages import Stats

    bench = Bench(requests=16)
    submit(bench.client, numbered(bench, 9))
    bench.client.on_stats(Stats(1, 0, 4, 12, {}, {}, {}))
    assert (bench.recorder.stats[0].waiting, bench.recorder.stats[0].queue_tokens) == (9, 27)


def test_retry_after_follows_the_rate_at_which_the_queue_empties(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(release_rate.time, "monotonic", lambda: now)
    queue = Queue(100, 10_000)
    queue.enter(100, 1000)
    with pytest.raises(Overloaded) as refused:
        queue.enter(40, 40)
    assert refused.value.retry_after == 1
    for _ in range(4):
        queue.leave(5, 50)
        queue.enter(5, 50)
        now += 1.0
    with pytest.raises(Overloaded, match=r"100 sequences.*--max-queue-requests.*try again in 8 s") as refused:
        queue.enter(40, 40)
    assert refused.value.retry_after == 8, "40 sequences at 5 per second"


def test_the_default_limits_follow_the_memory() -> None:
    small, medium, huge = (default_limits(size << 30) for size in (1, 24, 4096))
    assert small == (4096, 1 << 19) and huge == (65_536, 1 << 24)
    assert small[0] < medium[0] < huge[0] and small[1] < medium[1] < huge[1]
