"""Divides the message of a large request into parts. A part is sent when earlier parts have started.

The sequences of a `Generate` are its rows. The sequences of an `Encode` are its items.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode
from server.ipc.wire.generate_messages import Generate, GenerateRow


@dataclass(frozen=True)
class Part:
    """A part of a message: some of its sequences, which are sent as a separate message.

    whole: the whole message.
    first: index of the part's first sequence in the whole message.
    sizes: number of tokens in each sequence of the part.
    encode_id: id of the part of an `Encode`. None for a part of a `Generate`, whose rows have ids.
    """

    whole: Generate | Encode
    first: int
    sizes: list[int]
    encode_id: int | None = None

    @property
    def sequence_ids(self) -> list[int]:
        """The id of each row, or the one id of the part of an `Encode`."""
        if isinstance(self.whole, Generate):
            return [row.sequence_id for row in self.whole.rows[self.first : self.first + len(self.sizes)]]
        return [self.whole.sequence_id if self.encode_id is None else self.encode_id]

    def message(self) -> Generate | Encode:
        """The part as a message. It is built when it is sent, because thousands of rows take milliseconds."""
        whole, end = self.whole, self.first + len(self.sizes)
        if isinstance(whole, Encode):
            if len(self.sizes) == len(whole.items):
                return whole
            sequence_id = whole.sequence_id if self.encode_id is None else self.encode_id
            return msgspec.structs.replace(whole, sequence_id=sequence_id, items=whole.items[self.first : end])
        return whole if len(self.sizes) == len(whole.rows) else pick_rows(whole, whole.rows[self.first : end])


@dataclass(eq=False)
class Submission:
    """A call's message, divided into parts.

    parts: the parts that are not sent yet.
    waiting_sequences, waiting_tokens: number of sequences in sent parts that wait for their first step, and their
        tokens.
    sequence_ids: ids of the rows of all parts, or of the parts of an `Encode`.
    model: name of the model or adapter.
    """

    call: Call
    parts: deque[Part]
    waiting_sequences: int = 0
    waiting_tokens: int = 0
    sequence_ids: list[int] = field(init=False)
    model: str = field(init=False)

    def __post_init__(self) -> None:
        self.model = self.parts[0].whole.model
        self.sequence_ids = [sequence_id for part in self.parts for sequence_id in part.sequence_ids]


def fits(sizes: list[int], share: tuple[int, int]) -> bool:
    """Whether all sequences of a request may wait at once.

    sizes: number of tokens of each sequence.
    share: limits for one request: number of waiting sequences, and number of their tokens.
    """
    return len(sizes) <= share[0] and sum(sizes) <= share[1]


def split(
    message: Generate | Encode,
    sizes: list[int],
    share: tuple[int, int],
    next_id: Callable[[], int],
    num_pieces: int = 1,
) -> deque[Part]:
    """The parts in which a message is sent.

    A message within `share` has about `num_pieces` parts with equally many tokens. A larger message has parts of at
    most half of `share`; a sequence with more tokens than that is a part alone.

    sizes: number of tokens of each sequence.
    share: limits for one request: number of waiting sequences, and number of their tokens.
    next_id: creates the id of each part of an `Encode` after the first.
    num_pieces: number of workers among which the message is divided.
    """
    max_sequences, max_tokens = share
    if not fits(sizes, share):
        limits = max_sequences // 2, max_tokens // 2
    elif num_pieces == 1:
        return deque([Part(message, 0, sizes)])
    else:
        limits = len(sizes), -(-sum(sizes) // num_pieces)
    parts: deque[Part] = deque()
    for start, end in _ranges(sizes, max(limits[0], 1), max(limits[1], 1)):
        encode_id = next_id() if isinstance(message, Encode) and start else None
        parts.append(Part(message, start, sizes[start:end], encode_id))
    return parts


def _ranges(sizes: list[int], max_sequences: int, max_tokens: int) -> Iterator[tuple[int, int]]:
    start = tokens = 0
    for index, size in enumerate(sizes):
        if index > start and (index - start == max_sequences or tokens + size > max_tokens):
            yield start, index
            start, tokens = index, 0
        tokens += size
    yield start, len(sizes)


def pick_rows(message: Generate, rows: list[GenerateRow]) -> Generate:
    """A message with some of the rows, and only the prompts or audio frames of these rows."""
    used = {row.prompt: index for index, row in enumerate({row.prompt: row for row in rows}.values())}
    prompts = [message.prompts[prompt] for prompt in used] if message.prompts else []
    frames = [message.frames[prompt] for prompt in used] if message.frames else []
    rows = [msgspec.structs.replace(row, prompt=used[row.prompt]) for row in rows]
    return msgspec.structs.replace(message, prompts=prompts, frames=frames, rows=rows)
