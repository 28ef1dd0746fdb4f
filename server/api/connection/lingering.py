"""Close a connection so that its client can read the last answer.

Closing a socket that has unread bytes resets the connection (RFC 9293, section 3.10.7.1), and the client may lose the
answer. A lingering close sends the end of the stream first, and discards the client's bytes for `LINGER_SECONDS`.
"""

from __future__ import annotations

import asyncio
from typing import Any

LINGER_SECONDS = 2.0


class LingeringTransport:
    """Wrapper of a transport whose `close` lingers. All other attributes are those of the wrapped transport.

    TLS has no half-closed connections, so a TLS transport is closed immediately.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Send the end of the stream now. The connection ends when the client closes it, or after `LINGER_SECONDS`."""
        if self.is_closing():
            return
        self._closing = True
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        # The client may have stopped reading its answer (`pause_reading` by uvicorn), and its bytes must be dropped.
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)
