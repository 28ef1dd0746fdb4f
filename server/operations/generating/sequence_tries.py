"""Build the trie for `allowed_sequences`, the token sequences one of which the answer must be.

The arrays of a million sequences are built level by level, without a Python object per sequence or node.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.params import SequenceTrie
from server.operations.generating.generation_options import GenerationOptions
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel

_PARAM = "allowed_sequences"
_TOKEN_BITS = 32


def build_trie(sequences: Sequence[Sequence[int]]) -> SequenceTrie:
    """Build the trie of token sequences. Sequences may repeat, and must not be empty."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    flat = np.fromiter(chain.from_iterable(sequences), np.int32, int(lengths.sum()))
    starts = lengths.cumsum() - lengths
    places = np.zeros(len(lengths), dtype=np.int64)
    """For each sequence, the node of its first `depth` tokens, as an index among the nodes at this depth."""
    tokens, counts, ends = [np.array([-1], dtype=np.int32)], [], []
    alive, depth = np.arange(len(lengths)), 0
    while len(alive):
        level_ends = np.zeros(len(tokens[-1]), dtype=np.uint8)
        level_ends[places[alive[lengths[alive] == depth]]] = 1
        ends.append(level_ends)
        alive = alive[lengths[alive] > depth]
        keys = (places[alive] << _TOKEN_BITS) | flat[starts[alive] + depth]
        keys, places[alive] = np.unique(keys, return_inverse=True)
        counts.append(np.bincount(keys >> _TOKEN_BITS, minlength=len(tokens[-1])))
        tokens.append((keys & ((1 << _TOKEN_BITS) - 1)).astype(np.int32))
        depth += 1
    first_children = np.concatenate([[1], 1 + np.concatenate(counts).cumsum()]).astype("<i4")
    return SequenceTrie(
        np.concatenate(tokens).astype("<i4").tobytes(), first_children.tobytes(), np.concatenate(ends).tobytes()
    )


def sequence_characters(options: GenerationOptions) -> int:
    """Number of characters of all allowed texts, plus 1 for each token id, as a measure of the work to read them."""
    return sum(map(len, options.allowed_sequences))


async def allowed_trie(
    runtime: Runtime, call: Call, model: ServedModel, options: GenerationOptions
) -> SequenceTrie | None:
    """The trie of the option `allowed_sequences`, or None if it is not set.

    Raises InvalidRequest for a model without an end token, and for a sequence that is empty, has an id outside the
    vocabulary, or contains an end token.
    """
    if not options.allowed_sequences:
        return None
    if not model.info.generation.end_token_ids:
        raise InvalidRequest(f"`{_PARAM}` requires an end token; `{model.name}` has none", _PARAM)
    return await runtime.pools.tokenize.run(lambda: _trie_of(options.allowed_sequences, model), call)


def _trie_of(items: Sequence[str | Sequence[int]], model: ServedModel) -> SequenceTrie:
    """Tokenize the texts among the items, without special tokens, and build the trie. Raises InvalidRequest."""
    texts = [item for item in items if isinstance(item, str)]
    encoded = iter(model.tokenizer.encode(texts, add_special_tokens=False, offsets=False)) if texts else iter(())
    sequences = [next(encoded).ids if isinstance(item, str) else item for item in items]
    ends, vocab_size = frozenset(model.info.generation.end_token_ids), model.info.vocab_size
    for number, sequence in enumerate(sequences, 1):
        if not sequence:
            raise InvalidRequest(f"`{_PARAM}` has a text without any token in item {number:,}", _PARAM)
        if min(sequence) < 0 or max(sequence) >= vocab_size:
            raise InvalidRequest(
                f"`{_PARAM}` has a token id outside the vocabulary of {vocab_size:,} in item {number:,}", _PARAM
            )
        if not ends.isdisjoint(sequence):
            raise InvalidRequest(
                f"`{_PARAM}` has an end token in item {number:,}; the server adds the end token itself", _PARAM
            )
    return build_trie(sequences)
