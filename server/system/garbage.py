"""Run Python's garbage collector when it is cheap, so that it does not stop the event loop for long.

A full collection visits every object of the requests in progress, and all threads stop meanwhile: 0.14 s for a million
objects. Python starts it after a number of allocations, that is, when requests hold the most objects. Here a task
checks every second, and collects when there are few objects. After many allocations it collects in any case. Objects
without references are freed immediately, as always; the collector only finds cycles.
"""

from __future__ import annotations

import asyncio
import gc

CHECK_SECONDS = 1.0
MAX_OBJECTS = 50_000
"""Most objects for which a collection counts as cheap. It visits so many within about 20 ms."""
ITEMS_PER_OBJECT = 64
"""Number of list items that take as long as one object. A collection reads each item of a list, even numbers."""
MIN_ROUNDS, MAX_ROUNDS = 10, 250
"""Numbers of collections of the middle generation after which a full collection is useful, and after which it must run.

With Python's default thresholds, such a collection runs after 7,000 more allocations than deallocations of objects that
can be part of a cycle.
"""
_NEVER = 1 << 30


async def collect_when_cheap() -> None:
    """Decide when full collections of this process run, until the task is cancelled. Python then decides again."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], _NEVER)
    try:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            collect_if_due()
    finally:
        gc.set_threshold(*thresholds)


def collect_if_due() -> bool:
    """Run a full collection if it is useful and cheap, or overdue. Returns whether it ran."""
    rounds = gc.get_count()[2]
    if rounds < MIN_ROUNDS:
        return False
    if rounds < MAX_ROUNDS and not _is_cheap():
        return False
    gc.collect()
    return True


def _is_cheap() -> bool:
    """Whether a full collection has at most `MAX_OBJECTS` objects to visit, long lists counted as several objects."""
    objects = gc.get_objects(generation=2)
    if len(objects) > MAX_OBJECTS:
        return False
    items = sum(len(tracked) for tracked in objects if type(tracked) is list)
    return len(objects) + items // ITEMS_PER_OBJECT <= MAX_OBJECTS
