"""Thread pools: the order of work, limits, and every way in which waiting ends early."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import pytest

from server.errors import ClientGone, DeadlineExceeded, EngineFailure, Overloaded
from server.ipc.client.call import Call
from server.ipc.wire import time_limits
from server.operations import pools
from server.operations.pools import Pool, Pools


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` is true, as a result of work in threads."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


class NoClient:
    """A client of the engine for calls that send it nothing."""

    def withdraw(self, call: Call) -> None:
        pass

    def abort_all(self, sequence_ids: Sequence[int]) -> None:
        assert not sequence_ids

    def cancelled(self, sequence_ids: Collection[int]) -> None:
        assert not sequence_ids


def new_call(deadline: float | None = None, queue_seconds: float | None = None) -> Call:
    return Call(NoClient(), deadline, queue_seconds=queue_seconds)  # type: ignore[arg-type]


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool("test", threads=1, max_waiting=2)
    yield made
    made.close()


class Blocker:
    """Work that occupies a thread of a pool until `release` is called."""

    def __init__(self, pool: Pool) -> None:
        self.started, self._end = threading.Event(), threading.Event()
        self.task = asyncio.ensure_future(pool.run(self._work))

    def _work(self) -> None:
        self.started.set()
        assert self._end.wait(30)

    async def release(self) -> None:
        self._end.set()
        await self.task


async def blocked(pool: Pool) -> Blocker:
    blocker = Blocker(pool)
    await until(blocker.started.is_set)
    return blocker


async def test_a_full_pool_refuses_at_once(pool: Pool) -> None:
    blocker = await blocked(pool)
    waiting = [asyncio.ensure_future(pool.run(lambda: 1)) for _ in range(2)]
    await until(lambda: pool.requests == 3)
    with pytest.raises(Overloaded) as refused:
        await pool.run(lambda: 2)
    assert refused.value.retry_after == 1 and not blocker.task.done()
    await blocker.release()
    assert await asyncio.gather(*waiting) == [1, 1]
    assert pool.requests == 0
    assert await pool.run(lambda: 3) == 3


async def test_waiting_ends_when_the_client_leaves(pool: Pool) -> None:
    blocker = await blocked(pool)
    ran: list[int] = []
    call = new_call()
    waiting = asyncio.ensure_future(pool.run(lambda: ran.append(1), call))
    await until(lambda: pool.requests == 2)
    call.leave()
    with pytest.raises(ClientGone):
        await waiting
    assert pool.requests == 1
    await blocker.release()
    await pool.run(lambda: None)
    assert not ran and pool.requests == 0


async def test_waiting_ends_at_the_deadline(pool: Pool) -> None:
    blocker = await blocked(pool)
    with pytest.raises(DeadlineExceeded):
        await pool.run(lambda: None, new_call(time.monotonic() + 0.01))
    assert pool.requests == 1
    await blocker.release()


async def test_waiting_ends_when_the_request_has_waited_too_long(pool: Pool) -> None:
    blocker = await blocked(pool)
    with pytest.raises(DeadlineExceeded, match=r"--queue-timeout-seconds.*needed to test"):
        await pool.run(lambda: None, new_call(queue_seconds=0.01))
    await blocker.release()


async def test_a_started_request_may_wait_longer(pool: Pool) -> None:
    blocker = await blocked(pool)
    call = new_call(queue_seconds=0.01)
    call.progressed(time.monotonic())
    waiting = asyncio.ensure_future(pool.run(lambda: 1, call))
    await asyncio.sleep(0.03)
    await blocker.release()
    assert await waiting == 1


async def test_a_started_request_without_progress_fails(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "NO_PROGRESS_SECONDS", 0.01)
    blocker = await blocked(pool)
    call = new_call()
    call.progressed(time.monotonic())
    with pytest.raises(EngineFailure, match="computed nothing"):
        await pool.run(lambda: None, call)
    await blocker.release()


async def test_work_on_complete_answers_has_no_time_limit() -> None:
    assert [name for name, pool in vars(Pools()).items() if not pool.is_timed] == ["render"]
    pool = Pool("test", threads=1, max_waiting=2, is_timed=False)
    call = new_call(time.monotonic() - 1, queue_seconds=0.0)
    assert await pool.run(lambda: 1, call) == 1
    call.leave()
    with pytest.raises(ClientGone):
        await pool.run(lambda: 1, call)
    pool.close()


async def test_running_work_counts_until_it_has_ended(pool: Pool) -> None:
    started, end = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert end.wait(30)

    call = new_call()
    running = asyncio.ensure_future(pool.run(work, call))
    await until(started.is_set)
    call.leave()
    with pytest.raises(ClientGone):
        await running
    assert pool.requests == 1
    end.set()
    await until(lambda: pool.requests == 0)


async def test_a_cancelled_task_leaves_the_pool(pool: Pool) -> None:
    blocker = await blocked(pool)
    waiting = asyncio.ensure_future(pool.run(lambda: None, new_call(time.monotonic() + 60)))
    await until(lambda: pool.requests == 2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pool.requests == 1
    await blocker.release()


@pytest.mark.parametrize(
    ("turn_seconds", "order"),
    [(0.0, ["large 0", "small", "large 1", "large 2"]), (60.0, ["large 0", "large 1", "large 2", "small"])],
)
async def test_other_requests_run_between_the_turns_of_one(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, turn_seconds: float, order: list[str]
) -> None:
    monkeypatch.setattr(pools, "TURN_SECONDS", turn_seconds)
    blocker = await blocked(pool)
    ran: list[str] = []
    large = asyncio.ensure_future(pool.run_pieces([lambda i=i: ran.append(f"large {i}") for i in range(3)]))
    await until(lambda: pool.requests == 2)
    small = asyncio.ensure_future(pool.run(lambda: ran.append("small")))
    await until(lambda: pool.requests == 3)
    await blocker.release()
    await asyncio.gather(large, small)
    assert ran == order


async def test_pieces_after_the_end_of_a_call_do_not_run(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "TURN_SECONDS", 0.0)
    call = new_call()
    loop = asyncio.get_running_loop()
    ran: list[int] = []

    def first() -> None:
        ran.append(1)
        loop.call_soon_threadsafe(call.leave)

    with pytest.raises(ClientGone):
        await pool.run_pieces([first, lambda: ran.append(2)], call)
    assert ran == [1]
    await until(lambda: pool.requests == 0)


async def test_errors_of_the_work_are_raised(pool: Pool) -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await pool.run(fail)
    assert pool.requests == 0


async def test_results_have_the_order_of_the_pieces(pool: Pool) -> None:
    def piece(number: int) -> int:
        time.sleep(0.0004)  # several pieces for each turn, and several turns
        return number

    assert await pool.run_pieces([partial(piece, number) for number in range(20)]) == list(range(20))
    assert await pool.run_pieces([]) == []


async def test_pieces_after_an_error_do_not_run(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "TURN_SECONDS", 60.0)
    ran: list[int] = []

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await pool.run_pieces([lambda: ran.append(1), fail, lambda: ran.append(3)])
    assert ran == [1]
