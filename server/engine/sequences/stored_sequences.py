"""The stored sets of allowed sequences of one model, put together from the parts in which they arrive.

Imports no torch. See docs/decisions/0169-stored-sequences.md.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from server.engine.beams.allowed_sequences import TrieArrays, are_valid
from server.ipc.wire.generate_messages import ForgetSequences, SequenceMessage

log = logging.getLogger("triptych.worker")

_TOKEN_BYTES = 4
_NODE_BYTES = 9
"""Bytes of a node: its token, the index of its first child, and whether a sequence ends there."""


@dataclass
class _Arriving:
    """A set that is still incomplete. content: memory for the whole trie. filled: number of bytes that have arrived."""

    content: bytearray
    filled: int = 0


class StoredSequences:
    """The stored sets of allowed sequences of one model. vocab_size: number of token ids of the model."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._arriving: dict[int, _Arriving] = {}
        self._complete: dict[int, TrieArrays] = {}

    def get(self, set_id: int) -> TrieArrays | None:
        """Return the set with an id. None if it is unknown, is no valid trie, or some of its parts have not arrived."""
        return self._complete.get(set_id)

    def take(self, message: SequenceMessage) -> None:
        """Add a part to its set, or drop a set."""
        if isinstance(message, ForgetSequences):
            self._arriving.pop(message.set_id, None)
            self._complete.pop(message.set_id, None)
            return
        num_nodes = message.num_nodes
        arriving = self._arriving.get(message.set_id)
        if arriving is None:
            size = _NODE_BYTES * num_nodes + _TOKEN_BYTES
            arriving = self._arriving[message.set_id] = _Arriving(bytearray(size))
        end = arriving.filled + len(message.content)
        if end > len(arriving.content):
            log.error("a set of allowed sequences has more bytes than it announced; it is not used")
            return
        arriving.content[arriving.filled : end] = message.content
        arriving.filled = end
        if end == len(arriving.content):
            del self._arriving[message.set_id]
            arrays = _arrays_in(arriving.content, num_nodes)
            if are_valid(arrays, self._vocab_size):
                self._complete[message.set_id] = arrays
            else:
                log.error("a set of allowed sequences is malformed, or has a token outside the vocabulary")


def _arrays_in(content: bytearray, num_nodes: int) -> TrieArrays:
    """Split the bytes of a stored trie into its three arrays, without copying them. num_nodes: nodes of the trie."""
    children_at = _TOKEN_BYTES * num_nodes
    ends_at = children_at + _TOKEN_BYTES * (num_nodes + 1)
    return TrieArrays(
        np.frombuffer(content, dtype="<i4", count=num_nodes),
        np.frombuffer(content, dtype="<i4", count=num_nodes + 1, offset=children_at),
        np.frombuffer(content, dtype=np.uint8, count=num_nodes, offset=ends_at),
    )
