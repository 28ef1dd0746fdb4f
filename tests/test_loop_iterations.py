"""`next_iteration` divides long work among iterations of the event loop, so that other tasks run in between."""

from __future__ import annotations

import asyncio
import time

import pytest

from server.system import loop_iterations
from server.system.loop_iterations import next_iteration


class _Loop:
    """Counts the iterations of the running loop."""

    def __init__(self) -> None:
        self.iterations = 0
        asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self.iterations += 1
        asyncio.get_running_loop().call_soon(self._count)


def _work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_long_pieces_run_in_turns_of_their_own() -> None:
    async def main() -> list[int]:
        loop, found = _Loop(), []

        async def piece() -> None:
            await next_iteration()
            found.append(loop.iterations)
            _work(2 * loop_iterations.ITERATION_SECONDS)

        await asyncio.gather(*(piece() for _ in range(20)))
        return found

    found = asyncio.run(main())
    assert found == sorted(set(found)), "two long pieces ran in one iteration"


def test_short_pieces_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_iterations, "ITERATION_SECONDS", 60.0)

    async def main() -> set[int]:
        loop, found = _Loop(), set()

        async def piece() -> None:
            await next_iteration()
            found.add(loop.iterations)

        await asyncio.gather(*(piece() for _ in range(20)))
        return found

    assert len(asyncio.run(main())) == 1


def test_requests_go_on_in_their_order() -> None:
    async def main() -> list[int]:
        found: list[int] = []

        async def piece(number: int) -> None:
            await next_iteration()
            found.append(number)
            _work(2 * loop_iterations.ITERATION_SECONDS)

        await asyncio.gather(*(piece(number) for number in range(20)))
        return found

    assert asyncio.run(main()) == list(range(20))


def test_a_request_that_ends_while_it_waits_delays_no_other() -> None:
    async def main() -> list[int]:
        found: list[int] = []

        async def piece(number: int) -> None:
            await next_iteration()
            found.append(number)
            _work(2 * loop_iterations.ITERATION_SECONDS)

        tasks = [asyncio.create_task(piece(number)) for number in range(6)]
        await asyncio.sleep(0)
        for task in tasks[1:4]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return sorted(found)

    assert asyncio.run(main()) == [0, 4, 5]
