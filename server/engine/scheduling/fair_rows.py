"""Which running group gives its rows to a waiting one: rows are shared between API keys, then between calls.

A running group is preempted for a waiting one only if afterwards its key keeps at least as many rows as the key of the
waiting group then has. If both groups have the same key, the rule holds for their calls. Two groups therefore never
take rows from each other in turns. If all calls have few rows, a short group takes the row of a group that is not
short, for the moment that it needs. See docs/decisions/0137-fair-shares.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from server.engine.scheduling.round_robin import RunningRows
from server.engine.sequences.sequence import SequenceGroup

MAX_STARTS = 8
"""Groups of different calls for which one step makes room. Each preempted group is computed again later."""


class FairRows:
    """The running rows after the preemptions and starts that are planned.

    rows: number of rows of the running groups, by key and by call. running: the running groups, the oldest first.
    max_short: number of short groups that may run in place of preempted groups.
    """

    def __init__(self, rows: RunningRows, running: Sequence[SequenceGroup], max_short: int = 0) -> None:
        self._max_short, self._num_short = max_short, rows.num_short
        self._by_key, self._by_call, self.total = Counter(rows.by_key), Counter(rows.by_call), rows.total
        self._running = list(running)

    def victim(self, group: SequenceGroup) -> SequenceGroup | None:
        """The running group to preempt for a waiting group; None if no running group may be preempted for it.

        It belongs to the key with the most rows, and there to the call with the most rows. Of that call it is the group
        that started last.
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
        """Plan the preemption of a running group."""
        self._num_short -= group.is_short
        self._running.remove(group)
        self._count(group, -group.max_rows)

    def start(self, group: SequenceGroup) -> None:
        """Plan the start of a waiting group."""
        self._num_short += group.is_short
        self._count(group, group.max_rows)

    def _count(self, group: SequenceGroup, rows: int) -> None:
        self._by_key[group.key] += rows
        self._by_call[group.call_id] += rows
        self.total += rows
