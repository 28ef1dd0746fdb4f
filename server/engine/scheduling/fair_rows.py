"""Chooses the running group to preempt for a waiting group, so that API keys, and then calls, have equally many rows.

A running group is preempted for a waiting group only if the key of the running group afterwards has at least as many
rows as the key of the waiting group. If both groups have the same key, the rule compares their calls instead. Two
groups therefore never preempt each other again and again. If the rule allows no preemption, a short group (one that
asks for few tokens) may take the row of a longer group for a moment. See docs/decisions/0137-fair-shares.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from server.engine.scheduling.round_robin import RunningRows
from server.engine.sequences.sequence import SequenceGroup

MAX_STARTS = 8
"""Most waiting groups for which one step preempts running groups. Each preempted group must be computed again."""


class FairRows:
    """Numbers of running rows by key and by call, as they will be after the planned preemptions and starts.

    rows: number of rows of the running groups, by key and by call.
    running: the running groups, the oldest first.
    max_short: a short group may preempt any longer group while fewer than this number of short groups run.
    """

    def __init__(self, rows: RunningRows, running: Sequence[SequenceGroup], max_short: int = 0) -> None:
        self._max_short, self._num_short = max_short, rows.num_short
        self._by_key, self._by_call, self.total = Counter(rows.by_key), Counter(rows.by_call), rows.total
        self._running = list(running)

    def victim(self, group: SequenceGroup) -> SequenceGroup | None:
        """The running group to preempt for a waiting group; None if no running group may be preempted for it.

        The result belongs to the key with the most rows, and among the calls of that key to the one with the most rows.
        It is the group of that call that started last. If the rule forbids to preempt it, a short group may still get
        the row of a longer one.
        """
        if not self._running:
            return None
        # `max` returns the first of equals, here the newest.
        newest_first = self._running[::-1]
        largest = max(newest_first, key=self._rows_of)
        if largest.key != group.key:
            left, taken = self._by_key[largest.key], self._by_key[group.key]
        else:
            left, taken = self._by_call[largest.call_id], self._by_call[group.call_id]
        if left - largest.max_rows >= taken + group.max_rows:
            return largest
        if group.is_short and self._num_short < self._max_short:
            return max(
                (long_running for long_running in newest_first if not long_running.is_short),
                key=self._rows_of,
                default=None,
            )
        return None

    def _rows_of(self, group: SequenceGroup) -> tuple[int, int]:
        return self._by_key[group.key], self._by_call[group.call_id]

    def preempt(self, group: SequenceGroup) -> None:
        """Count a running group as preempted."""
        self._num_short -= group.is_short
        self._running.remove(group)
        self._count(group, -group.max_rows)

    def start(self, group: SequenceGroup) -> None:
        """Count a waiting group as started."""
        self._num_short += group.is_short
        self._count(group, group.max_rows)

    def _count(self, group: SequenceGroup, rows: int) -> None:
        self._by_key[group.key] += rows
        self._by_call[group.call_id] += rows
        self.total += rows
