"""Decode windows of a recording, several at a time. If the text of a window ends early, its rest is decoded, too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from server.operations.speech.speech_windows import Window, WindowResult


async def decode_windows(
    windows: Sequence[Window],
    at_once: int,
    decode: Callable[[Sequence[Window]], Awaitable[Sequence[WindowResult]]],
    rest_of: Callable[[Window, WindowResult], Window | None],
) -> AsyncIterator[tuple[Window, WindowResult]]:
    """Decode windows, and yield each with its result, in order of time.

    windows: in order of time. at_once: maximum number of windows that are decoded at the same time.
    decode: decodes windows at the same time, and returns their results in order.
    rest_of: returns the part of a decoded window that must be decoded again; None if there is no such part. The part is
        decoded together with the windows after it.
    """
    queue: list[tuple[Window, WindowResult | None]] = [(window, None) for window in windows]
    while queue:
        waiting = [index for index, (_, result) in enumerate(queue) if result is None][:at_once]
        results = await decode([queue[index][0] for index in waiting])
        # From the end, so that an inserted window does not move the others.
        for index, result in reversed([*zip(waiting, results, strict=True)]):
            window, _ = queue[index]
            rest = rest_of(window, result)
            queue[index : index + 1] = [(window, result), *([] if rest is None else [(rest, None)])]
        while queue and (found := queue[0][1]) is not None:
            yield queue.pop(0)[0], found
