"""Limits the number of requests in progress and the total bytes of their bodies, before a body is read.

These limits are the first that a request meets. Admission by cost (`server.operations.admission`) follows when the body
is known, and the engine's queue (`server.ipc.client.queue`) when the texts are tokenized. `server.limits.refusals`
lists all limits.

The memory for bodies has room for only a few recordings. A request with a recording is therefore not refused for lack
of this memory: its body stays unread until there is room (`Door.wait_for_body`).
"""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.datastructures import Headers
from starlette.types import Scope

from server.errors import Overloaded, Refusal
from server.ipc.client.release_rate import ReleaseRate
from server.ipc.wire.time_limits import TimeLimits
from server.limits.refusals import BODY_MEMORY, CONNECTIONS, REQUESTS
from server.operations.turnstile import Turnstile
from server.operations.waiting import Waiting

OVER_CONNECTION_LIMIT = "triptych.over_connection_limit"
"""Key in the ASGI scope: the limit of connections if the request's connection exceeds it, otherwise 0."""
HELD_BYTES = "triptych.held_bytes"
"""Key in the ASGI scope: bytes that `Door` counts for the body of the request."""
RECORDING_PATHS = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations", "/inference"})
"""Paths whose bodies are recordings. A body is counted when it is about to be read, not when the request arrives."""
LIVE_PATHS = frozenset({"/v1/audio/transcriptions/live"})
"""Paths whose bodies are streams of audio. The part of a body that is in memory is counted while it is read."""
SEQUENCE_SETS = "/allowed_sequences/"
"""First part of the paths under which sets of sequences are stored.

Only the part of a body that is in memory is counted, while it is read.
"""


def is_counted_in_parts(path: str) -> bool:
    """Whether only the parts of a body on this path that are in memory are counted, while the body is read."""
    return path in LIVE_PATHS or path.startswith(SEQUENCE_SETS)


class Door:
    """Limits the number of requests in progress, and the total bytes of their bodies.

    max_requests: maximum number of requests in progress.
    max_body_bytes: maximum total of their body sizes, taken from `Content-Length`. A body that is alone may exceed it.
    assumed_bytes: size that is assumed for a body without `Content-Length`.
    """

    def __init__(self, max_requests: int, max_body_bytes: int, assumed_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_body_bytes = max_body_bytes
        self.requests = 0
        self.body_bytes = 0
        self._assumed_bytes = assumed_bytes
        self._rate = ReleaseRate()
        self._turnstile = Turnstile()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter(self, scope: Scope, headers: Headers) -> None:
        """Count a request and the bytes of its body. Raises Overloaded if a limit would be exceeded."""
        size = scope[HELD_BYTES] = self.check(scope, headers)
        self.requests += 1
        self.body_bytes += size

    def receive(self, scope: Scope, size: int) -> None:
        """Count the bytes of a body that has no `Content-Length`, while the body arrives.

        size: bytes that are in memory now.
        Raises Overloaded if the body has grown since the last call, and the limit would be exceeded.
        """
        more = size - scope[HELD_BYTES]
        if more <= 0:
            return
        others = self.body_bytes - scope[HELD_BYTES]
        if others and others + size > self.max_body_bytes:
            state = f"the bodies of the other requests in progress have {others:,} bytes, and this one {size:,} so far"
            raise self._overloaded(state, self._body_refusal())
        scope[HELD_BYTES] = size
        self.body_bytes += more

    def check(self, scope: Scope, headers: Headers, waiting: int = 0) -> int:
        """Check the limits for a request, and return the bytes to count for its body. Raises Overloaded.

        waiting: number of earlier requests that have not entered yet.
        """
        if most := scope.get(OVER_CONNECTION_LIMIT):
            raise self._overloaded("too many connections are open", CONNECTIONS.refusal(f"{most:,}"))
        path = scope.get("path", "")
        is_counted_later = path in RECORDING_PATHS or is_counted_in_parts(path)
        size = 0 if is_counted_later else self._announced(headers)
        if self.requests + waiting >= self.max_requests:
            raise self._overloaded(
                f"{self.requests + waiting:,} requests are in progress", REQUESTS.refusal(f"{self.max_requests:,}")
            )
        # A body above the limit of one body is refused when it is read, and must not wait for room that never comes.
        if self.body_bytes and self.body_bytes + size > self.max_body_bytes:
            state = f"the bodies of the requests in progress have {self.body_bytes:,} bytes, and this one {size:,}"
            raise self._overloaded(state, self._body_refusal())
        return size

    async def wait_for_body(self, scope: Scope, size: int, limits: TimeLimits) -> None:
        """Wait until there is room for the body of a recording, and count it. Bodies get room in order of arrival.

        A body that was counted already when the request arrived, because its path also takes other bodies, need not
        wait.

        size: bytes of the body. limits: time limits of the wait.
        Raises DeadlineExceeded when a time limit has passed.
        """
        if scope.get(HELD_BYTES):
            return
        need = "the bodies of earlier requests needed the memory"
        async with self._turnstile.turn(None, limits, need):
            while self.body_bytes and self.body_bytes + size > self.max_body_bytes:
                left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(left)
                await Waiting(left, None, limits, need).result()
            scope[HELD_BYTES] = size
            self.body_bytes += size

    def drop_body(self, scope: Scope) -> None:
        """Stop counting the body of a request that is not in memory any more, and wake waiting bodies."""
        self.body_bytes -= scope.get(HELD_BYTES, 0)
        scope[HELD_BYTES] = 0
        while self._waiting:
            left = self._waiting.popleft()
            if not left.done():
                left.set_result(None)

    def leave(self, scope: Scope) -> None:
        """Stop counting a request that has ended, and its body."""
        self.requests -= 1
        self.drop_body(scope)
        self._rate.add(1)

    def _announced(self, headers: Headers) -> int:
        length = headers.get("content-length", "")
        if length.isdigit():
            return int(length[:20])
        return self._assumed_bytes if "transfer-encoding" in headers else 0

    def _body_refusal(self) -> Refusal:
        return BODY_MEMORY.refusal(f"{self.max_body_bytes:,} bytes")

    def _overloaded(self, state: str, refusal: Refusal) -> Overloaded:
        return Overloaded(state, refusal, self._rate.seconds_until(self.requests - self.max_requests + 1))
