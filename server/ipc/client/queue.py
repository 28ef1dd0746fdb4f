"""Limits the queue: the sequences and tokens that wait for their first step, over all models and requests.

A request that is larger than a quarter of the queue is sent in parts (`server.ipc.client.submission`), so that it
leaves room for other requests.
"""

from __future__ import annotations

from server.errors import Overloaded
from server.ipc.client.release_rate import ReleaseRate
from server.limits.refusals import QUEUE_REQUESTS, QUEUE_TOKENS

REQUEST_SHARE = 4
"""A request may fill at most the queue divided by this number: a quarter."""

_MEMORY_SHARE = 32
"""The queue may take at most the memory of the machine divided by this number: 1/32."""
_SEQUENCE_BYTES = 16 << 10
_TOKEN_BYTES = 128
"""Memory in bytes: `_SEQUENCE_BYTES` of a waiting sequence, and `_TOKEN_BYTES` of each of its tokens.

The part in the worker is measured, the part in the HTTP process is estimated.
"""
_MIN_SEQUENCES, _MAX_SEQUENCES = 4096, 65_536
_MIN_TOKENS, _MAX_TOKENS = 1 << 19, 1 << 24


def default_limits(memory_bytes: int) -> tuple[int, int]:
    """Default maximum numbers of waiting sequences and of waiting tokens. memory_bytes: memory of the machine."""
    half = memory_bytes // _MEMORY_SHARE // 2
    sequences = min(max(half // _SEQUENCE_BYTES, _MIN_SEQUENCES), _MAX_SEQUENCES)
    tokens = min(max(half // _TOKEN_BYTES, _MIN_TOKENS), _MAX_TOKENS)
    return sequences, tokens


class Queue:
    """Counts waiting sequences (`requests`) and their tokens (`tokens`).

    max_requests, max_tokens: largest numbers of waiting sequences and of their tokens.
    """

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.requests = 0
        self.tokens = 0
        self._left = ReleaseRate()
        self._left_tokens = ReleaseRate()

    @property
    def request_share(self) -> tuple[int, int]:
        """Maximum numbers of sequences and tokens of one request that may wait at the same time."""
        return max(self.max_requests // REQUEST_SHARE, 1), max(self.max_tokens // REQUEST_SHARE, 1)

    def has_room(self, requests: int, tokens: int) -> bool:
        return self.requests + requests <= self.max_requests and self.tokens + tokens <= self.max_tokens

    def enter(self, requests: int, tokens: int) -> None:
        """Count sequences and tokens that begin to wait. Raises Overloaded, and counts none, if not all have room."""
        if not self.has_room(requests, tokens):
            state = f"{self.tokens:,} tokens wait in the queue, and this request adds {tokens:,}"
            refusal = QUEUE_TOKENS.refusal(f"{self.max_tokens:,}")
            if self.requests + requests > self.max_requests:
                state = f"{self.requests:,} sequences wait in the queue, and this request adds {requests:,}"
                refusal = QUEUE_REQUESTS.refusal(f"{self.max_requests:,}")
            raise Overloaded(state, refusal, self._seconds_until_room(requests, tokens))
        self.requests += requests
        self.tokens += tokens

    def leave(self, requests: int, tokens: int) -> None:
        """Subtract sequences and tokens that have started or were dropped."""
        self.requests -= requests
        self.tokens -= tokens
        self._left.add(requests)
        self._left_tokens.add(tokens)

    def _seconds_until_room(self, requests: int, tokens: int) -> int:
        """Estimated seconds until the queue has room for a request.

        The estimate uses the rate at which the queue became shorter in recent seconds.
        """
        return max(
            self._left.seconds_until(self.requests + requests - self.max_requests),
            self._left_tokens.seconds_until(self.tokens + tokens - self.max_tokens),
        )
