"""When Python's garbage collector runs, so that it does not stop the event loop for long.

A full collection visits every object that requests in progress hold, and all threads stop meanwhile: 0.14 s for a
million objects. Python starts one after a number of allocations, that is, when requests hold the most. Here a task
checks every second, and collects when few objects are held. If that moment does not come, it collects after many
allocations anyway. Objects that nothing refers to are freed immediately, as always; the collector only finds cycles.
"""

from __future__ import annotations

import asyncio
import gc

CHECK_SECONDS = 1.0
MAX_OBJECTS = 50_000
"""Objects that a collection visits within about 20 ms."""
ITEMS_PER_OBJECT = 64
"""Items of lists that take as long as one object. A collection reads each of them, even if it is a number."""
MIN_ROUNDS, MAX_ROUNDS = 10, 250
"""Collections of the younger generations after which a full one is useful, and after which it must come.

A round runs when 7,000 more objects were allocated than freed, counting only objects that can be part of a cycle.
"""
_NEVER = 1 << 30


async def collect_when_cheap() -> None:
    """Take over the full collections of the process, until the task is cancelled."""
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
    """Whether a full collection has little to visit."""
    objects = gc.get_objects(generation=2)
    if len(objects) > MAX_OBJECTS:
        return False
    items = sum(len(tracked) for tracked in objects if type(tracked) is list)
    return len(objects) + items // ITEMS_PER_OBJECT <= MAX_OBJECTS
