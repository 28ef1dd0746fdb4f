"""Build the trie for `allowed_sequences`: the answer must be one of these token sequences.

The arrays of a million sequences are built level by level, without a Python object per sequence or node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.params import SequenceTrie
from server.operations.generating.generation_options import GenerationOptions
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel

MAX_SEQUENCE_TOKENS = 4_096
"""Maximum number of tokens in one sequence. The time of building a trie grows with its longest sequence."""
_PORTION = 1 << 16
"""Tokens that are copied in one call."""
_PARAM = "allowed_sequences"
_TOKEN_BITS = 32

Items = Sequence[str | Sequence[int]]
"""Sequences as a request has them: texts, and lists of token ids."""
Lengths = NDArray[np.int64]
Tokens = NDArray[np.int32]


def build_trie(sequences: Sequence[Sequence[int]]) -> SequenceTrie:
    """Build the trie of token sequences. Sequences may repeat, and must not be empty."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    return trie_of(lengths, np.fromiter(chain.from_iterable(sequences), np.int32, int(lengths.sum())))


def trie_of(lengths: Lengths, tokens: Tokens) -> SequenceTrie:
    """The trie of sequences that follow one another in an array.

    lengths: [sequences], int64, tokens of each sequence, at least 1. tokens: [sum of lengths], int32.
    """
    starts = lengths.cumsum() - lengths
    places = np.zeros(len(lengths), dtype=np.int64)
    """For each sequence, the node of its first `depth` tokens, as an index within the level of that depth."""
    levels, counts, ends = [np.array([-1], dtype="<i4")], [], []
    alive, depth = np.arange(len(lengths)), 0
    while len(alive):
        level_ends = np.zeros(len(levels[-1]), dtype=np.uint8)
        level_ends[places[alive[lengths[alive] == depth]]] = 1
        ends.append(level_ends)
        alive = alive[lengths[alive] > depth]
        keys = (places[alive] << _TOKEN_BITS) | tokens[starts[alive] + depth]
        keys, places[alive] = np.unique(keys, return_inverse=True)
        counts.append(np.bincount(keys >> _TOKEN_BITS, minlength=len(levels[-1])).astype("<i4"))
        levels.append((keys & ((1 << _TOKEN_BITS) - 1)).astype("<i4"))
        depth += 1
    children = np.concatenate([np.array([1], dtype="<i4"), *counts])
    np.cumsum(children, out=children)
    return SequenceTrie(np.concatenate(levels).tobytes(), children.tobytes(), np.concatenate(ends).tobytes())


def sequence_characters(options: GenerationOptions) -> int:
    """Number of characters in the allowed texts, plus 1 for each token id; 0 for a stored set.

    It bounds the work of reading.
    """
    items = options.allowed_sequences
    return 0 if isinstance(items, str) else sum(map(len, items))


async def allowed_trie(
    runtime: Runtime, call: Call, model: ServedModel, options: GenerationOptions
) -> SequenceTrie | int | None:
    """The trie of `allowed_sequences`, the id of the stored set that it names, or None without the option.

    Raises InvalidRequest for a model without an end token, for an item without a token or with a wrong one, and for a
    name without a stored set of the model.
    """
    items = options.allowed_sequences
    if not items:
        return None
    check_end_token(model)
    if isinstance(items, str):
        return runtime.sequence_sets.hold(call, items, model.info.adapter_of or model.name)
    return await runtime.pools.tokenize.run(lambda: _trie_of(items, model), call)


def check_end_token(model: ServedModel) -> None:
    """Raise InvalidRequest for a model whose answers have no end token."""
    if not model.info.generation.end_token_ids:
        raise InvalidRequest(f"`{_PARAM}` requires an end token; `{model.name}` has none", _PARAM)


def _trie_of(items: Items, model: ServedModel) -> SequenceTrie:
    lengths, tokens = flat_tokens(items, model, lambda index: f"item {index + 1:,}")
    return trie_of(lengths, tokens)


def flat_tokens(items: Items, model: ServedModel, place: Callable[[int], str]) -> tuple[Lengths, Tokens]:
    """The tokens of sequences, one after the other. Each text is tokenized by itself, without special tokens around it.

    place: how errors name the item with an index.
    Returns the arguments of `trie_of`. Raises InvalidRequest that names the first wrong item.
    """
    texts = [item for item in items if isinstance(item, str)]
    encoded = iter(model.tokenizer.encode(texts, add_special_tokens=False, offsets=False)) if texts else iter(())
    sequences = [next(encoded).ids if isinstance(item, str) else item for item in items]
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    _check_lengths(lengths, place)
    flat = chain.from_iterable(sequences)
    # In portions, because each call holds Python's global lock.
    portions = [np.fromiter(islice(flat, _PORTION), np.int64) for _ in range(0, int(lengths.sum()), _PORTION)]
    tokens = np.concatenate([np.empty(0, np.int64), *portions])
    vocab_size, ends = model.info.vocab_size, model.info.generation.end_token_ids
    problems = (
        ((tokens < 0) | (tokens >= vocab_size), f"a token id outside the vocabulary of {vocab_size:,} in", ""),
        (np.isin(tokens, ends), "an end token in", "; the server adds the end token itself"),
    )
    for wrong, problem, advice in problems:
        if wrong.any():
            index = int(np.searchsorted(lengths.cumsum(), wrong.argmax(), side="right"))
            raise InvalidRequest(f"`{_PARAM}` has {problem} {place(index)}{advice}", _PARAM)
    return lengths, tokens.astype(np.int32)


def _check_lengths(lengths: Lengths, place: Callable[[int], str]) -> None:
    """Raise InvalidRequest for a sequence without a token, or with too many tokens."""
    if (lengths == 0).any():
        raise InvalidRequest(
            f"`{_PARAM}` has a text without any token in {place(int((lengths == 0).argmax()))}", _PARAM
        )
    longest = int(lengths.argmax())
    if lengths[longest] > MAX_SEQUENCE_TOKENS:
        raise InvalidRequest(
            f"`{_PARAM}` has {int(lengths[longest]):,} tokens in {place(longest)}; the limit is "
            f"{MAX_SEQUENCE_TOKENS:,}",
            _PARAM,
        )
