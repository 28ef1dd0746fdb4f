"""Run Python's garbage collector when it is cheap, so that it does not stop the event loop for long.

A full collection visits every object of the requests in progress, and all threads stop meanwhile: 0.14 s for a million
objects. Python starts it after a number of allocations, that is, when requests hold the most objects. Here a task
checks every second, and collects when there are few objects. After many allocations it collects in any case. Objects
without references are freed immediately, as always; the collector only finds cycles.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import deque

CHECK_SECONDS = 1.0
MAX_OBJECTS = 50_000
"""Most objects for which a collection counts as cheap.

A collection visits this number of objects within about 20 ms.
"""
ITEMS_PER_OBJECT = 64
"""Number of list items that take as long as one object. A collection reads each item of a list, even numbers."""
MIN_ROUNDS, MAX_ROUNDS = 10, 250
"""Limits for the number of collections of the middle generation since the last full collection.

From `MIN_ROUNDS` on, a full collection is useful; from `MAX_ROUNDS` on, it is overdue. With Python's default
thresholds, the middle generation is collected after each 7,000 allocations of objects, minus deallocations. Only
objects that can be part of a cycle count.
"""
MAX_OVERDUE_CHECKS = 15
"""Number of checks for which an overdue collection waits until it is cheap. Then it runs in any case.

Sixteen requests for thousands of answers make it overdue within a second, and end some seconds later.
"""
MAX_BLOCKS = 8 * MAX_OBJECTS
"""Number of memory blocks with which a collection counts as expensive, above the smallest number of recent checks.

The objects are then not even counted, because a list of a million objects takes up to 50 ms.
"""
REMEMBERED_CHECKS = 600
"""Number of recent checks whose smallest number of memory blocks is the base.

Blocks that the process keeps for longer do not belong to work in progress.
"""
_NEVER = 1 << 30


async def collect_when_cheap() -> None:
    """Decide when full collections of this process run, until the task is cancelled. Python then decides again."""
    thresholds = gc.get_threshold()
    blocks: deque[int] = deque(maxlen=REMEMBERED_CHECKS)
    overdue_checks = 0
    gc.set_threshold(*thresholds[:2], _NEVER)
    try:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            blocks.append(sys.getallocatedblocks())
            overdue_checks = overdue_checks + 1 if gc.get_count()[2] >= MAX_ROUNDS else 0
            collect_if_due(blocks[-1] - min(blocks), overdue_checks)
    finally:
        gc.set_threshold(*thresholds)


def collect_if_due(added_blocks: int = 0, overdue_checks: int = 0) -> bool:
    """Run a full collection if it is useful and cheap, or has been overdue for too long. Returns whether it ran.

    added_blocks: blocks of memory that the work in progress holds.
    overdue_checks: number of checks since the collection became overdue.
    """
    if gc.get_count()[2] < MIN_ROUNDS:
        return False
    if overdue_checks < MAX_OVERDUE_CHECKS and (added_blocks > MAX_BLOCKS or not _is_cheap()):
        return False
    gc.collect()
    return True


def _is_cheap() -> bool:
    """Whether a full collection has at most `MAX_OBJECTS` objects to visit. Long lists count as several objects."""
    objects = gc.get_objects(generation=2)
    if len(objects) > MAX_OBJECTS:
        return False
    items = sum(len(tracked) for tracked in objects if type(tracked) is list)
    return len(objects) + items // ITEMS_PER_OBJECT <= MAX_OBJECTS
