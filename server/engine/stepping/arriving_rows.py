"""Queue of the rows of large messages. They become sequence groups in parts: one part before each step.

Making the groups of a message with 512 rows takes as long as a step. A client may send many such messages at once. If
all their groups were made at once, the streams and short requests of other clients would have to wait.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection

from server.engine.scheduling.round_robin import RoundRobinQueue
from server.ipc.wire.generate_messages import Generate, GenerateRow


class ArrivingRows:
    """Messages with rows that are not sequence groups yet. API keys, and then calls, take turns."""

    def __init__(self) -> None:
        self._rows: dict[int, GenerateRow] = {}
        self._queue: RoundRobinQueue[tuple[Generate, deque[GenerateRow]]] = RoundRobinQueue()

    def __len__(self) -> int:
        """Number of rows that are not sequence groups yet and were not aborted."""
        return len(self._rows)

    @property
    def num_tokens(self) -> int:
        """Number of prompt tokens (source tokens of an encoder-decoder) of all rows. Audio sources do not count."""
        return sum(
            len(message.prompts[row.prompt])
            for message, rows in self._queue
            if not message.frames
            for row in rows
            if row.sequence_id in self._rows
        )

    @property
    def rows_by_model(self) -> Counter[str]:
        """Number of rows by the name of their model or adapter."""
        waiting: Counter[str] = Counter()
        for message, rows in self._queue:
            waiting[message.model] += sum(row.sequence_id in self._rows for row in rows)
        return waiting

    @property
    def model(self) -> str:
        """Name of the model, or adapter, of the rows that `next` will return. There must be at least one row."""
        return self._queue.next()[0].model

    def add(self, message: Generate) -> None:
        """Queue the rows of a message after the earlier messages of its call."""
        self._rows |= {row.sequence_id: row for row in message.rows}
        self._queue.add(message.key, message.call_id or message.rows[0].sequence_id, (message, deque(message.rows)))

    def next(self, max_rows: int) -> tuple[Generate, list[GenerateRow]]:
        """Take the next part: a message, and at most `max_rows` of its rows. There must be at least one row."""
        message, rows = self._queue.next()
        part: list[GenerateRow] = []
        while rows and len(part) < max_rows:
            row = rows.popleft()
            if self._rows.pop(row.sequence_id, None) is not None:
                part.append(row)
        self._queue.end_turn(keep=bool(rows))
        self._forget_ended()
        return message, part

    def abort(self, sequence_id: int) -> None:
        """Drop a row. An unknown id is ignored."""
        self._rows.pop(sequence_id, None)
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Empty the queue if every row was aborted or taken."""
        if not self._rows and len(self._queue):
            self._queue = RoundRobinQueue()

    def remove(self, names: Collection[str]) -> None:
        """Drop the rows of a model. names: name of the model, and names of its adapters."""
        kept, self._queue = list(self._queue), RoundRobinQueue()
        for message, rows in kept:
            if message.model in names:
                for row in rows:
                    self._rows.pop(row.sequence_id, None)
            else:
                self._queue.add(message.key, message.call_id or message.rows[0].sequence_id, (message, rows))
