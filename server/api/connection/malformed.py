"""The answer to bytes that are no HTTP request, and one log line for many such errors.

The bytes never reach the application. Neither the answer nor the log repeats any of them.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from http import HTTPStatus

from server.api.bodies.sse import dumps
from server.errors import RequestError

log = logging.getLogger("triptych.http")

LOG_SECONDS = 1.0
"""Period after a log line in which further malformed requests are only counted."""


class _Log:
    """Logs the first malformed request of a period, and at the end of the period how many more followed."""

    def __init__(self) -> None:
        self._others: int | None = None

    def add(self, reason: str, client: str, request_id: str) -> None:
        if self._others is not None:
            self._others += 1
            return
        self._others = 0
        log.warning("%s: client %s, request %s", reason, client, request_id)
        asyncio.get_running_loop().call_later(LOG_SECONDS, self._end_of_period)

    def _end_of_period(self) -> None:
        if self._others:
            log.warning("%d more requests that are no HTTP within %g s", self._others, LOG_SECONDS)
        self._others = None


_log = _Log()


def refusal(error: RequestError, client: tuple[str, int] | None) -> bytes:
    """Log the error, and return the bytes of a complete HTTP response with `connection: close`.

    client: address and port, of which the address is logged.
    """
    request_id = uuid.uuid4().hex
    _log.add(error.message, client[0] if client else "-", request_id)
    body = dumps(error.body(request_id))
    return (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n"
        b"connection: close\r\n\r\n%b"
    ) % (error.status, HTTPStatus(error.status).phrase.encode(), len(body), request_id.encode(), body)
