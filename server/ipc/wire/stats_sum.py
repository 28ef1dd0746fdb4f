"""Combines the statistics of several workers into one `Stats` message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from server.ipc.wire.step_messages import Stats


def with_others(stats: Stats, others: Iterable[Stats]) -> Stats:
    """The statistics of one worker, with the present numbers (rows, tokens, blocks, memory) of other workers added.

    Counts of events since the last message are not added: the events of the other workers were counted when their
    messages arrived.
    others: last statistics of each other worker.
    """
    every = [stats, *others]
    if len(every) == 1:
        return stats
    return msgspec.structs.replace(
        stats,
        running=sum(worker.running for worker in every),
        waiting=sum(worker.waiting for worker in every),
        queue_tokens=sum(worker.queue_tokens for worker in every),
        kv_blocks_used=_sum(worker.kv_blocks_used for worker in every),
        kv_blocks_total=_sum(worker.kv_blocks_total for worker in every),
        device_memory_bytes=_sum(worker.device_memory_bytes for worker in every),
        host_bytes=_sum(worker.host_bytes for worker in every),
        state_bytes=_sum(worker.state_bytes for worker in every),
        running_rows=_sum(worker.running_rows for worker in every),
        waiting_rows=_sum(worker.waiting_rows for worker in every),
    )


def without_increments(stats: Stats) -> Stats:
    """A copy of statistics with only the present numbers. Counts of events are zero, because they were used before."""
    return msgspec.structs.replace(
        stats, steps=[], preemptions=0, wasted_tokens=0, prefix_queries=0, prefix_hits=0, drafts={}, host_blocks={}
    )


def _sum(numbers: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counts in numbers:
        total.update(counts)
    return dict(total)
