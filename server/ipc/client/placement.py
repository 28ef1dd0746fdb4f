"""Chooses the worker of each request: one that has the beginning of the prompt in its cache, else the least loaded one.

The KV blocks of a prompt stay in the prefix cache of the worker that computed them. A table maps hashes of the
beginnings of recent prompts to that worker, so that the next request of a conversation finds its blocks.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from server.ipc.client.worker_state import WorkerState
from server.ipc.wire.encode_messages import Encode
from server.ipc.wire.generate_messages import Generate

MAX_PREFIX_BLOCKS = 64
"""Prompts are hashed after 1, 2, 4, ... blocks, up to this number."""
MAX_PREFIXES = 16_384
MAX_EXTRA_LOAD = 16
"""A worker with the first n blocks of a prompt in its cache gets the request if its load exceeds the lowest load by at
most n, and by at most this number (the load of four waiting sequences). Requests with the same short system prompt
therefore still go to several workers.
"""
SPREAD_TOKENS = 512
"""The texts of an `Encode` go to several workers if each of them gets at least this many tokens."""


class Placement:
    """Chooses a worker for each message.

    stale_seconds: a worker that sent no message for this time is chosen only if the other workers sent none either.
    """

    def __init__(self, stale_seconds: float) -> None:
        self._stale_seconds = stale_seconds
        self._homes: OrderedDict[bytes, int] = OrderedDict()

    def choose(self, workers: Sequence[WorkerState], message: Generate | Encode, block_size: int) -> WorkerState:
        """Choose the worker for a message.

        workers: the workers that accept requests, at least one. block_size: number of tokens in a KV block.
        """
        if len(workers) == 1:
            return workers[0]
        now = time.monotonic()
        fresh = [worker for worker in workers if now - worker.last_message_seconds <= self._stale_seconds]
        least = min(fresh or workers, key=lambda worker: worker.load)
        keys = dict(_prefix_keys(message, block_size)) if isinstance(message, Generate) else {}
        longest = next((key for key in reversed(keys) if key in self._homes), None)
        chosen = least
        if longest is not None:
            home = next((worker for worker in fresh if worker.epoch == self._homes[longest]), least)
            if home.load <= least.load + min(keys[longest], MAX_EXTRA_LOAD):
                chosen = home
        for key in keys:
            self._homes[key] = chosen.epoch
            self._homes.move_to_end(key)
        while len(self._homes) > MAX_PREFIXES:
            self._homes.popitem(last=False)
        return chosen


def num_pieces(num_workers: int, message: Generate | Encode, sizes: Sequence[int]) -> int:
    """Number of workers among which a message should be divided.

    The texts of an `Encode` do not depend on each other. The rows of a `Generate` share prompts, so they stay together.
    sizes: number of tokens of each text or row.
    """
    if isinstance(message, Generate):
        return 1
    return max(min(num_workers, len(sizes), sum(sizes) // SPREAD_TOKENS), 1)


def _prefix_keys(message: Generate, block_size: int) -> Iterator[tuple[bytes, int]]:
    """Hashes of prefixes of the first prompt, shortest first: pairs of the hash and the prefix's length in blocks.

    The lengths are powers of two. A prompt that is shorter than a block has no such hash.
    """
    if not message.prompts or not block_size:
        return
    tokens = message.prompts[0]
    hashed = blake2b(f"{message.model}\0{message.cache_salt}".encode(), digest_size=16)
    start, num_blocks = 0, 1
    while num_blocks <= MAX_PREFIX_BLOCKS and num_blocks * block_size <= len(tokens):
        end = num_blocks * block_size
        hashed.update(array("q", tokens[start:end]).tobytes())
        yield hashed.digest(), num_blocks
        start, num_blocks = end, 2 * num_blocks
