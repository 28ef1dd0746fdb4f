"""Sequences that were sent to a worker and have not ended. If their worker is lost, they are sent again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from server.ipc.client.call import Call
from server.ipc.client.submission import Part, Submission, pick_rows
from server.ipc.client.worker_state import WorkerState
from server.ipc.wire.encode_messages import Encode
from server.ipc.wire.generate_messages import Generate


@dataclass(slots=True, eq=False)
class OpenSequence:
    """A row, or an `Encode` with its items, that was sent to a worker and has not ended.

    submission: the whole message of the call, of which the sequence is a part.
    model: name of the model or adapter.
    message: the message that was sent. None after the first event of a row, because then it cannot be sent again.
    places: index of the row, or of each item, in the whole request.
    sizes: number of tokens of the row, or of each item.
    unanswered: indices, in `message`, of the items whose results have not arrived; for a row, one entry until the row
        ends.
    waiting_sequences, waiting_tokens: sequences and tokens that are counted in the queue: a row until it starts, an
        item until it is answered.
    worker: the worker to which the sequence was sent; None while it waits for a worker.
    was_moved: whether the sequence has lost a worker and may not be sent again a second time.
    started: whether an output has arrived.
    seen_tokens: number of generated tokens that have arrived.
    last_seconds: when the last tokens arrived, in seconds of `time.monotonic()`; None before the first ones.
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
        """Index of the row, or of the first item, in the whole request."""
        return self.places[0]


Sequences = dict[int, OpenSequence]
"""Open sequences by their `sequence_id` in messages."""


def open_sequences(submission: Submission, part: Part, message: Generate | Encode) -> Sequences:
    """Create the open sequences of a part that is about to be sent: one per row, or one for all items of an `Encode`.

    message: the message of the part, with its deadlines.
    Returns the sequences by id.
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
    """Build messages that send the sequences of lost workers again. Yields each message with its sequences.

    Items that were answered are left out.

    sequences: pairs of the id and the sequence. Each has a message and no worker.
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
