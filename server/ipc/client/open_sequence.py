"""A sequence that was admitted and has not ended: its missing results, and the messages that send it again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from server.ipc.client.call import Call
from server.ipc.client.submission import Part, Submission, pick_rows
from server.ipc.client.worker_state import WorkerState
from server.ipc.wire.messages import Encode, Generate


@dataclass(slots=True, eq=False)
class OpenSequence:
    """A row, or an `Encode` with its items, that was sent to a worker and has not ended.

    submission: the message that it belongs to.
    message: the message that was sent. None as soon as an event of a row was delivered: it cannot be sent again.
    places: index of the row, or of each item, in the whole request.
    sizes: tokens of the row, or of each item.
    unanswered: indices, in `message`, of the items whose results have not arrived; for a row, one entry until the row
        ends.
    waiting_sequences, waiting_tokens: sequences and tokens that are counted in the queue: a row until it starts, an
        item until it is answered.
    worker: the worker that it was sent to; None while it waits for one.
    was_moved: it was sent again after a worker was lost.
    started: an output has arrived.
    """

    submission: Submission
    model: str
    message: Generate | Encode | None
    places: list[int]
    sizes: list[int]
    unanswered: set[int]
    waiting_sequences: int
    waiting_tokens: int
    worker: WorkerState | None = None
    was_moved: bool = False
    started: bool = False
    seen_tokens: int = 0
    last_seconds: float | None = None

    @property
    def call(self) -> Call:
        return self.submission.call

    @property
    def index(self) -> int:
        """Index of the row in the whole request."""
        return self.places[0]


Sequences = dict[int, OpenSequence]
"""Open sequences by request id."""


def open_sequences(submission: Submission, part: Part, message: Generate | Encode) -> Sequences:
    """Create the open sequences of a part that is about to be sent: one per row, or one for all items of an `Encode`.

    message: the message of the part.
    """
    if isinstance(message, Encode):
        count, tokens = len(part.sizes), sum(part.sizes)
        places = list(range(part.first, part.first + count))
        return {
            message.sequence_id: OpenSequence(
                submission, message.model, message, places, part.sizes, set(range(count)), count, tokens
            )
        }
    return {
        row.sequence_id: OpenSequence(submission, message.model, message, [part.first + index], [size], {0}, 1, size)
        for index, (row, size) in enumerate(zip(message.rows, part.sizes, strict=True))
    }


def messages_to_repeat(sequences: Iterable[tuple[int, OpenSequence]]) -> Iterator[tuple[Generate | Encode, Sequences]]:
    """Build messages that send sequences of a lost worker again. Returns each message with its sequences.

    Items that were answered are left out.

    sequences: sequences without a worker, by their ids in messages.
    """
    rows: dict[int, Sequences] = {}
    for sequence_id, sequence in sequences:
        message = sequence.message
        assert message is not None
        if isinstance(message, Generate):
            rows.setdefault(id(message), {})[sequence_id] = sequence
            continue
        left = sorted(sequence.unanswered)
        message = msgspec.structs.replace(message, items=[message.items[item] for item in left])
        sequence.message = message
        sequence.places = [sequence.places[item] for item in left]
        sequence.sizes = [sequence.sizes[item] for item in left]
        sequence.unanswered = set(range(len(left)))
        yield message, {sequence_id: sequence}
    for group in rows.values():
        whole = next(iter(group.values())).message
        assert isinstance(whole, Generate)
        again = pick_rows(whole, [row for row in whole.rows if row.sequence_id in group])
        for sequence in group.values():
            sequence.message = again
        yield again, group
