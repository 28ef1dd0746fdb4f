"""Restricts an answer to a list of token sequences: a trie in flat arrays gives the tokens that may follow each text.

All texts of a step are looked up together. The cost is proportional to the number of allowed next tokens, and does not
depend on the number of sequences in the list. Imports no torch. See docs/decisions/0158-allowed-sequences.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.ipc.wire.params import SequenceTrie

Ids = NDArray[np.int64]


class TrieArrays(NamedTuple):
    """The arrays of a `SequenceTrie` as numpy arrays. The docstring of `SequenceTrie` describes their content.

    tokens: [nodes], int32. first_children: [nodes + 1], int32. ends: [nodes], uint8.
    """

    tokens: NDArray[np.int32]
    first_children: NDArray[np.int32]
    ends: NDArray[np.uint8]


class AllowedSequences:
    """The token sequences that one request allows as answers.

    arrays: the sequences, as a trie.
    end_ids: tokens that end a text. They are allowed only after a complete sequence.
    Methods name a text by its trie node, an index. Node -1 stands for a text with which no sequence begins: no token
    may follow it.
    """

    def __init__(self, arrays: TrieArrays, end_ids: Sequence[int]) -> None:
        self._tokens, self._first_children, self._ends = arrays
        self._end_ids = np.array(sorted(set(end_ids)), dtype=np.int64)

    def may_end(self, node: int) -> bool:
        """Whether the text of a node is a complete sequence; False for node -1."""
        return node >= 0 and bool(self._ends[node])

    def next_tokens(self, nodes: Ids) -> tuple[Ids, Ids]:
        """The tokens that may follow each text, as pairs of a text and a token.

        nodes: [texts], int64: node of each text.
        Returns, for each pair, the index of the text in `nodes`, and the token: [pairs] and [pairs], int64.
        """
        starts, counts = self._children(nodes)
        texts = np.repeat(np.arange(len(nodes)), counts)
        places = np.arange(len(texts)) + np.repeat(starts - (counts.cumsum() - counts), counts)
        ended = ((nodes >= 0) & (self._ends[nodes] != 0)).nonzero()[0]
        return (
            np.concatenate([texts, np.repeat(ended, len(self._end_ids))]),
            np.concatenate([self._tokens[places].astype(np.int64), np.tile(self._end_ids, len(ended))]),
        )

    def children(self, nodes: Ids, tokens: Ids) -> Ids:
        """The node of each text after one more token; -1 if no sequence begins with the longer text.

        nodes, tokens: [texts], int64.
        """
        starts, counts = self._children(nodes)
        low, high = starts.copy(), starts + counts
        # A binary search of all texts at once: the tokens of the children of a node ascend.
        for _ in range(int(counts.max(initial=0)).bit_length()):
            middle = (low + high) // 2
            is_less = (low < high) & (self._tokens[np.minimum(middle, len(self._tokens) - 1)] < tokens)
            low, high = np.where(is_less, middle + 1, low), np.where(is_less, high, middle)
        found = np.minimum(low, len(self._tokens) - 1)
        return np.where((low < starts + counts) & (self._tokens[found] == tokens), found, -1)

    def _children(self, nodes: Ids) -> tuple[Ids, Ids]:
        """First child and number of children of each node: [texts], int64 each. Node -1 has no children."""
        starts = self._first_children[nodes].astype(np.int64)
        return starts, np.where(nodes >= 0, self._first_children[nodes + 1] - starts, 0)


def arrays_of(trie: SequenceTrie) -> TrieArrays:
    """View the bytes of a trie as arrays, without a copy. Raises ValueError if a part of an entry is missing."""
    return TrieArrays(
        np.frombuffer(trie.tokens, dtype="<i4"),
        np.frombuffer(trie.first_children, dtype="<i4"),
        np.frombuffer(trie.ends, dtype=np.uint8),
    )


def is_valid(trie: SequenceTrie, vocab_size: int) -> bool:
    """Whether a trie is well-formed, and its tokens are in the vocabulary. vocab_size: number of token ids."""
    num_nodes = len(trie.ends)
    if len(trie.tokens) != 4 * num_nodes or len(trie.first_children) != 4 * (num_nodes + 1):
        return False
    return are_valid(arrays_of(trie), vocab_size)


def are_valid(arrays: TrieArrays, vocab_size: int) -> bool:
    """Whether arrays of matching lengths are a trie with tokens of the vocabulary. vocab_size: number of token ids."""
    tokens, first_children, ends = arrays
    num_nodes = len(ends)
    if num_nodes < 2:
        return False
    has_all = first_children[0] == 1 and first_children[-1] == num_nodes
    ascends = bool((first_children[1:] >= first_children[:-1]).all())
    goes_down = bool((first_children[:-1] > np.arange(num_nodes, dtype=np.int32)).all())
    return bool(has_all) and ascends and goes_down and int(tokens[1:].min()) >= 0 and int(tokens.max()) < vocab_size
