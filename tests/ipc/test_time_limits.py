"""Time limits of a call: waiting until the first row starts, the whole answer, and the time without progress."""

from __future__ import annotations

import asyncio
import time

import pytest

from server.ipc.client import call as call_module
from server.ipc.client.call import Call, request_error
from server.ipc.wire import time_limits
from server.ipc.wire.encode_messages import Encode, Encoded, EncodeItem
from server.ipc.wire.generate_messages import Generate, Tokens
from server.ipc.wire.message_base import Message
from server.ipc.wire.step_messages import Failed
from server.ipc.wire.time_limits import LimitTimer, TimeLimits
from tests.ipc.test_client import Bench, finished
from tests.ipc.test_lost_workers import Workers

SHORT = 0.02


def waiting_call(bench: Bench, message: Generate | Encode, seconds: float = SHORT) -> Call:
    """Submit a call that may wait in the queue for `seconds`."""
    call = Call(bench.client, queue_seconds=seconds)
    call.submit(message)
    return call


def sent(messages: list[Message]) -> list[Generate | Encode]:
    return [message for message in messages if isinstance(message, Generate | Encode)]


def test_the_first_limit_follows_the_state_of_a_request() -> None:
    limits = TimeLimits(deadline=500.0, queue_seconds=60.0, since=100.0)
    assert limits.first() == (160.0, "timeout", "the request waited 60 s and was not started (--queue-timeout-seconds)")
    assert (limits.start_deadline, limits.next_deadline) == (160.0, 160.0)
    limits.progressed = 150.0
    assert limits.first() == (270.0, "engine_error", "the engine computed nothing for this request during 120 s")
    assert limits.start_deadline is None
    limits.progressed = 499.0
    assert limits.first() == (500.0, "timeout", "the deadline passed")
    assert limits.first(slack_seconds=1.0) == (501.0, "timeout", "the deadline passed")
    assert TimeLimits().first() is None and TimeLimits().passed() is None


async def test_a_wait_ends_with_the_name_of_its_setting() -> None:
    bench = Bench()
    call = waiting_call(bench, bench.generate_all([10, 10]))
    events = await call.events()
    assert [index for index, _ in events] == [0, 1]
    failures = [event for _, event in events if isinstance(event, Failed)]
    assert {event.code for event in failures} == {"timeout"} and request_error(failures[0]).status == 504
    assert "--queue-timeout-seconds" in failures[0].message
    assert bench.aborted == [1, 2] and bench.waiting == (0, 0)


async def test_a_wait_includes_the_time_before_the_submission() -> None:
    bench = Bench()
    call = Call(bench.client, queue_seconds=SHORT)
    await asyncio.sleep(2 * SHORT)
    call.submit(bench.generate())
    ((_, event),) = await call.events()
    assert isinstance(event, Failed) and event.code == "timeout"


@pytest.mark.parametrize("event", ["computing", "tokens"])
async def test_rows_that_wait_for_their_siblings_have_no_limit(event: str) -> None:
    bench = Bench(requests=64)
    call = waiting_call(bench, bench.generate_all([10, 10, 10]))
    bench.output(**{event: [2 if event == "computing" else Tokens(2, [7])]})
    await asyncio.sleep(3 * SHORT)
    assert bench.client.num_open_sequences == 3 and not bench.aborted
    bench.output(finished=[finished(id, 7) for id in (1, 2, 3)])
    assert sum(not isinstance(event, Tokens) for _, event in await call.events()) == 3


async def test_messages_and_parts_after_the_start_do_not_wait_for_it() -> None:
    bench = Bench(requests=8)
    call = waiting_call(bench, bench.generate_all([1] * 3), seconds=60.0)
    first = sent(bench.sent)
    assert [message.start_deadline for message in first] == [call.limits.since + 60.0] * 2
    assert {message.deadline for message in first} == {None}
    bench.output(computing=[1])
    bench.output(tokens=[Tokens(1, [7]), Tokens(2, [7])])
    assert [message.start_deadline for message in sent(bench.sent)[2:]] == [None]
    bench.output(finished=[finished(id, 7) for id in (1, 2, 3)])
    while await call.events():
        pass
    bench.sent.clear()
    call.submit(bench.generate())
    assert [message.start_deadline for message in sent(bench.sent)] == [None]


async def test_the_client_puts_the_deadline_of_the_call_into_its_messages() -> None:
    bench = Bench()
    for message in (bench.generate(), Encode(bench.client.next_id(), "encoder", "embed", [EncodeItem([5])])):
        Call(bench.client, deadline := time.monotonic() + 60).submit(message)
        assert sent(bench.sent)[-1].deadline == deadline


async def test_the_texts_of_one_request_on_two_workers_start_together() -> None:
    workers = Workers(1, 2)
    texts = [EncodeItem([5] * 600), EncodeItem([6] * 600)]
    call = Call(workers.client, queue_seconds=SHORT)
    call.submit(Encode(workers.client.next_id(), "encoder", "embed", texts))
    assert [len(sent(workers.sent[epoch])) for epoch in (1, 2)] == [1, 1]
    (first,), (second,) = sent(workers.sent[1]), sent(workers.sent[2])
    workers.output(1, computing=[first.sequence_id])
    await asyncio.sleep(3 * SHORT)
    workers.output(2, encoded=[Encoded(second.sequence_id, 0, b"b")])
    assert [type(event) for _, event in await call.events()] == [Encoded]


async def test_a_wait_ends_without_any_worker() -> None:
    workers = Workers(1)
    call = Call(workers.client, queue_seconds=SHORT)
    call.submit(workers.generate())
    workers.client.on_lost(1)
    ((_, event),) = await call.events()
    assert isinstance(event, Failed) and event.code == "timeout"


async def test_a_request_without_progress_fails_as_a_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(time_limits, "NO_PROGRESS_SECONDS", SHORT)
    bench = Bench()
    call = Call(bench.client)
    call.submit(bench.generate())
    bench.output(tokens=[Tokens(1, [7])])
    (_, token), *rest = await call.events()
    (_, event), *_ = rest or await call.events()
    assert isinstance(token, Tokens) and isinstance(event, Failed)
    assert event.code == "engine_error" and request_error(event).status == 500
    assert bench.aborted == [1] and "computed nothing" in caplog.text


async def test_progress_moves_the_time_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "NO_PROGRESS_SECONDS", 0.1)
    limits = TimeLimits(progressed=time.monotonic())
    passed: list[float] = []
    timer = LimitTimer(limits, lambda limit: passed.append(limit.time))
    timer.start()
    for _ in range(10):
        await asyncio.sleep(0.02)
        limits.progressed = time.monotonic()
    last = limits.progressed
    assert timer.is_running and not passed
    while not passed:
        await asyncio.sleep(0.01)
    assert passed == [last + 0.1] and not timer.is_running


async def test_an_answer_that_makes_progress_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time without progress starts again whenever the worker reports that it is computing a row.

    A long prompt in chunks gives no tokens for some time.
    """
    monkeypatch.setattr(time_limits, "NO_PROGRESS_SECONDS", 0.1)
    bench = Bench()
    call = waiting_call(bench, bench.generate())
    for _ in range(10):
        bench.output(computing=[1])
        await asyncio.sleep(0.02)
    bench.output(finished=[finished(1, 7)])
    assert [type(event).__name__ for _, event in await call.events()] == ["Finished"]


async def test_a_text_in_a_long_step_makes_progress_while_the_worker_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that takes one long step makes progress as long as the worker sends heartbeats.

    The worker reports the text before the step.
    """
    monkeypatch.setattr(time_limits, "NO_PROGRESS_SECONDS", 0.1)
    workers = Workers(1)
    call, other = workers.encode(1), workers.encode(1)
    workers.output(1, computing=[1])
    for _ in range(10):
        workers.client.on_computing(1)
        await asyncio.sleep(0.02)
    assert call.limits.progressed is not None and other.limits.progressed is None
    workers.output(1, encoded=[Encoded(1, 0, b"", 0)])
    assert [type(event).__name__ for _, event in await call.events()] == ["Encoded"]
    ended = other.limits.progressed
    workers.client.on_computing(1)
    workers.client.on_computing(2)
    assert other.limits.progressed is ended, "the worker reported nothing for the step after the first"


async def test_the_deadline_of_the_answer_applies_before_and_after_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "DEADLINE_SLACK_SECONDS", 0.01)
    bench = Bench()
    for started in (False, True):
        call = Call(bench.client, time.monotonic() + SHORT, queue_seconds=60.0)
        message = bench.generate()
        call.submit(message)
        if started:
            bench.output(computing=[message.rows[0].sequence_id])
        ((_, event),) = await call.events()
        assert isinstance(event, Failed) and (event.code, event.message) == ("timeout", "the deadline passed")


async def test_a_closed_call_has_no_timer() -> None:
    bench = Bench()
    call = waiting_call(bench, bench.generate(), seconds=60.0)
    bench.output(tokens=[Tokens(1, [7])])
    assert call._timer.is_running
    call.close()
    bench.output(computing=[1])
    call.progressed(time.monotonic())
    assert not call._timer.is_running
