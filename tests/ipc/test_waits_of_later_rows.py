"""The limit of the time without progress, while further rows of a started request wait behind rows of other requests.

The clock is simulated."""

from __future__ import annotations

import pytest

from server.ipc.client import call as call_module
from server.ipc.client import client as client_module
from server.ipc.client import sequence_table, worker_state
from server.ipc.client.call import Call
from server.ipc.wire import time_limits
from server.ipc.wire.encode_messages import Encode, Encoded, EncodeItem
from server.ipc.wire.generate_messages import Tokens
from server.ipc.wire.step_messages import Failed
from tests.ipc.test_client import Bench, finished
from tests.ipc.test_lost_workers import Workers


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (time_limits, call_module, client_module, sequence_table, worker_state):
        monkeypatch.setattr(module, "time", clock)
    return clock


def check(call: Call) -> str:
    """Run the timer of a call once. Returns the error message if the call fails now, else an empty text."""
    call._timer._check()
    failures = [event.message for _, event in call._take_events() if isinstance(event, Failed)]
    return failures[0] if failures else ""


async def started(bench: Bench) -> Call:
    """A call whose first message has been answered."""
    call = Call(bench.client, queue_seconds=60.0)
    message = bench.generate()
    call.submit(message)
    bench.output(finished=[finished(message.rows[0].sequence_id, 7)])
    await call.events()
    return call


async def test_a_later_message_waits_while_the_engine_computes_for_others(clock: Clock) -> None:
    bench = Bench()
    call = await started(bench)
    other = bench.submit()
    later = bench.generate()
    call.submit(later)
    for _ in range(10):
        clock.now += 100
        bench.output(tokens=[Tokens(2, [7])])
        assert check(call) == "" and check(other) == ""
    clock.now += 100
    bench.output(computing=[later.rows[0].sequence_id])
    clock.now += 119
    assert check(call) == ""
    bench.output(finished=[finished(later.rows[0].sequence_id, 7)])
    assert not bench.aborted and call.limits.passed() is None


async def test_a_later_message_fails_on_an_engine_that_computes_nothing(clock: Clock) -> None:
    bench = Bench()
    call = await started(bench)
    clock.now += 1000
    call.submit(bench.generate())
    clock.now += 119
    assert check(call) == ""
    clock.now += 2
    assert check(call) == "the engine computed nothing for any request during 120 s"


async def test_a_row_that_has_started_does_not_live_on_the_progress_of_others(clock: Clock) -> None:
    bench = Bench()
    call, other = bench.submit(bench.generate_all([10, 10])), bench.submit()
    bench.output(computing=[1])
    for _ in range(2):
        clock.now += 61
        bench.output(tokens=[Tokens(3, [7])])
    assert check(call) == "the engine computed nothing for this request during 120 s" and check(other) == ""


async def test_rows_whose_siblings_have_ended_wait_behind_others(clock: Clock) -> None:
    bench = Bench()
    call, other = bench.submit(bench.generate_all([10, 10])), bench.submit()
    bench.output(tokens=[Tokens(1, [7])])
    bench.output(finished=[finished(1, 7)])
    await call.events()
    for _ in range(5):
        clock.now += 100
        bench.output(tokens=[Tokens(3, [7])])
        assert check(call) == ""
    assert check(other) == ""


async def test_texts_wait_between_the_steps_of_their_request(clock: Clock) -> None:
    bench = Bench(tokens=4000)
    call = Call(bench.client, queue_seconds=60.0)
    texts = Encode(bench.client.next_id(), "encoder", "embed", [EncodeItem([5]), EncodeItem([6])])
    call.submit(texts)
    bench.submit()
    bench.output(computing=[texts.sequence_id])
    clock.now += 100
    bench.output(encoded=[Encoded(texts.sequence_id, 0, b"a")])
    await call.events()
    for _ in range(5):
        clock.now += 100
        bench.output(tokens=[Tokens(2, [7])])
        assert check(call) == ""
    bench.output(computing=[texts.sequence_id])
    for _ in range(2):
        clock.now += 61
        bench.output(tokens=[Tokens(2, [7])])
    assert check(call) == "the engine computed nothing for this request during 120 s"


async def test_work_of_this_process_between_two_messages_has_no_limit(clock: Clock) -> None:
    """There is no limit while the HTTP process itself works between two messages of a call.

    It computes, for example, the windows of a recording then.
    """
    bench = Bench()
    call = await started(bench)
    clock.now += 1000
    call.check_time()
    assert call.limits.next_deadline is None and call.limits.start_deadline is None
    later = bench.generate()
    call.submit(later)
    bench.output(computing=[later.rows[0].sequence_id])
    call.stop(0)
    clock.now += 1000
    call.check_time()


async def test_a_row_that_waits_for_a_new_worker_waits_as_long_as_that_takes(clock: Clock) -> None:
    workers = Workers(1)
    call = workers.submit()
    workers.output(1, computing=[1])
    workers.client.on_lost(1)
    for _ in range(5):
        clock.now += 100
        assert check(call) == ""
    workers.ready(2)
    clock.now += 119
    assert check(call) == ""
    workers.output(2, tokens=[Tokens(1, [7])])
    clock.now += 121
    assert check(call) == "the engine computed nothing for this request during 120 s"


@pytest.mark.parametrize("limit", ["deadline", "queue"])
async def test_the_other_limits_stay(clock: Clock, limit: str) -> None:
    bench = Bench()
    if limit == "queue":
        call = Call(bench.client, queue_seconds=60.0)
        call.limits.since = clock.now
        other = bench.submit()
        call.submit(bench.generate())
        clock.now += 61
        bench.output(tokens=[Tokens(1, [7])])
        assert "--queue-timeout-seconds" in check(call) and check(other) == ""
    else:
        call = await started(bench)
        call.limits.deadline = clock.now + 100
        call.submit(bench.generate())
        clock.now += 102
        assert check(call) == "the deadline passed"
