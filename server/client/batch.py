"""Send many requests, a limited number at a time, and write their outcomes in the order of the inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from server.client.records import Outcome

ItemT = TypeVar("ItemT")


async def run_batch(
    items: Iterable[ItemT],
    send: Callable[[ItemT], Awaitable[Sequence[Outcome]]],
    write: Callable[[Outcome], None],
    concurrency: int,
) -> None:
    """Send all items. The outcomes are written in the order of the items, each as soon as all earlier ones are written.

    If the run is cancelled or a request raises, outcomes that still wait for earlier ones are written too, so that
    nothing is lost that the server has computed.

    items: requests. send: sends a request, and returns the outcomes of its inputs. write: writes an outcome.
    concurrency: most requests in progress.
    Raises the first exception of `send` or `write`.
    """
    finished: dict[int, Sequence[Outcome]] = {}
    waiting = iter(enumerate(items))
    written = 0

    async def work() -> None:
        nonlocal written
        for index, item in waiting:
            finished[index] = await send(item)
            while written in finished:
                for outcome in finished.pop(written):
                    write(outcome)
                written += 1

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(concurrency):
                workers.create_task(work())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        for index in sorted(finished):
            for outcome in finished[index]:
                write(outcome)
