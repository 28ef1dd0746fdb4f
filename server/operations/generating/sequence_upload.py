"""Read a set of allowed sequences, one JSON value per line, while it arrives.

Each piece of some lines is converted to token ids in flat arrays before the next piece is read. Neither the whole body
nor a Python object per sequence is kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import chain

import numpy as np
import orjson

from server.errors import InvalidRequest
from server.ipc.wire.params import SequenceTrie
from server.operations.generating.sequence_tries import Lengths, Tokens, check_end_token, flat_tokens, trie_of
from server.operations.runtime import Runtime
from server.operations.sequence_sets import StoredSet
from server.operations.served_model import ServedModel

MAX_SET_SEQUENCES = 1 << 20
"""Maximum number of sequences in one set."""
MAX_SET_TOKENS = 1 << 23
"""Maximum number of tokens in one set, over all its sequences.

Building its trie then takes at most 250 MB for a moment.
"""
MAX_LINE_BYTES = 1 << 16
PIECE_BYTES = 1 << 18
"""Bytes of lines that are tokenized together, in less than 100 ms."""
_PARAM = "body"


class SequenceLines:
    """The sequences of the lines that have arrived. model: the model whose tokens they become."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._lengths: list[Lengths] = []
        self._tokens: list[Tokens] = []
        self._num_lines = 0
        self.num_sequences = self.num_tokens = 0

    def add(self, piece: bytes) -> None:
        """Add complete lines. Empty lines are left out. Raises InvalidRequest that names the first wrong line."""
        lines = piece.split(b"\n")
        longest = max(range(len(lines)), key=lambda index: len(lines[index]))
        if len(lines[longest]) > MAX_LINE_BYTES:
            number = self._num_lines + longest + 1
            raise InvalidRequest(
                f"line {number:,} has {len(lines[longest]):,} bytes; the limit is {MAX_LINE_BYTES:,}", _PARAM
            )
        numbers = [self._num_lines + index for index, line in enumerate(lines, 1) if line.strip()]
        self._num_lines += len(lines)
        if not numbers:
            return
        items = _parse([line for line in lines if line.strip()], numbers)
        lengths, tokens = flat_tokens(items, self._model, lambda index: f"line {numbers[index]:,}")
        self.num_sequences += len(lengths)
        self.num_tokens += len(tokens)
        for count, limit, unit in (
            (self.num_sequences, MAX_SET_SEQUENCES, "sequences"),
            (self.num_tokens, MAX_SET_TOKENS, "tokens"),
        ):
            if count > limit:
                raise InvalidRequest(f"the set has more than {limit:,} {unit}, which is the limit", _PARAM)
        self._lengths.append(lengths)
        self._tokens.append(tokens)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory for the lengths and the tokens of all sequences that were read so far."""
        return 8 * self.num_sequences + 4 * self.num_tokens

    def trie(self) -> SequenceTrie:
        """The trie of all sequences. Raises InvalidRequest if there are none."""
        if not self._lengths:
            raise InvalidRequest("the set has no sequence: send one JSON string or list of token ids a line", _PARAM)
        return trie_of(np.concatenate(self._lengths), np.concatenate(self._tokens))


async def store_set(
    runtime: Runtime,
    salt: str,
    name: str,
    model: ServedModel,
    chunks: AsyncIterator[bytes],
    take_memory: Callable[[int], None],
) -> StoredSet:
    """Read a set and store it. It replaces a set with the same name. Returns when all workers have it.

    salt: stands for the API key.
    model: a model that generates, not an adapter.
    chunks: the body, as it arrives.
    take_memory: called with the bytes that are in memory so far, before more of the body is read. May raise Overloaded.

    Raises:
        InvalidRequest: a line is no sequence, or there are too many.
        RequestTooLarge: there is no room for the set.
        Overloaded: too many requests wait for the threads, or other bodies take the memory.
    """
    check_end_token(model)
    sets = runtime.sequence_sets
    sets.check_room(salt, name, 2)
    lines, rest = SequenceLines(model), b""
    async for chunk in chunks:
        rest += chunk
        while len(rest) >= PIECE_BYTES:
            # A piece without a line break is one line, which `add` refuses for its length.
            end = rest.rfind(b"\n", 0, 2 * PIECE_BYTES)
            piece, rest = (rest, b"") if end < 0 else (rest[:end], rest[end + 1 :])
            await runtime.pools.tokenize.run(partial(lines.add, piece))
            take_memory(lines.num_bytes + len(rest))
    await runtime.pools.tokenize.run(partial(lines.add, rest))
    trie = await runtime.pools.keep.run(lines.trie)
    num_nodes = len(trie.ends)
    sets.check_room(salt, name, num_nodes)
    set_id = await runtime.client.store_sequences(model.name, trie)
    found = StoredSet(salt, name, model.name, set_id, lines.num_sequences, lines.num_tokens, num_nodes)
    try:
        sets.check_room(salt, name, num_nodes)  # another set may have been stored meanwhile
    except BaseException:
        runtime.client.forget_sequences(set_id)
        raise
    sets.put(found)
    return found


def _parse(lines: Sequence[bytes], numbers: Sequence[int]) -> list[str | list[int]]:
    """The JSON values of lines: texts and lists of token ids. numbers: line numbers, counted from 1, for errors."""
    try:
        items: list[str | list[int]] = orjson.loads(b"[" + b",".join(lines) + b"]")
    except orjson.JSONDecodeError:
        items = []
    ids = [*chain.from_iterable(item for item in items if isinstance(item, list))]
    if len(items) == len(lines) and all(items) and {*map(type, items)} <= {str, list} and _are_ids(ids):
        return items
    wrong = next((number for number, line in zip(numbers, lines, strict=True) if not _is_sequence(line)), numbers[0])
    raise InvalidRequest(f"line {wrong:,} is no JSON string or list of token ids, or it is empty", _PARAM)


def _is_sequence(line: bytes) -> bool:
    """Whether a line is a JSON string or a list of token ids, and not empty."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return bool(value) and (isinstance(value, str) or (isinstance(value, list) and _are_ids(value)))


def _are_ids(values: Sequence[object]) -> bool:
    """Whether all values are integers from 0 to 2^31 - 1."""
    return {*map(type, values)} <= {int} and all(0 <= value < 1 << 31 for value in values if isinstance(value, int))
