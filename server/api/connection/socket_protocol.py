"""uvicorn's WebSocket protocol with limits for the frames that a client sends."""

from __future__ import annotations

from asyncio.transports import BaseTransport
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from server.api.connection.portions import HeldFlow, HeldTransport, Portions

MAX_MESSAGE_BYTES = 4 << 20
"""Largest message of a WebSocket connection: over a minute of audio in base64."""
MAX_FRAGMENTS = 4096
"""Most frames of one message. Frames may be empty, so the size of a message does not limit their number."""
PORTION_BYTES = 1 << 10
"""Received bytes that are parsed at once. They hold up to 170 frames, which take 2 ms."""


class LimitedSocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket protocol that parses frames in portions, and not faster than the application and the client read.

    The bytes that follow a complete message stay unparsed until the application has taken it. Pings are not answered
    while the client does not read the earlier answers.
    """

    _portions: Portions

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        flow = HeldFlow(self.transport)
        self._portions = Portions(PORTION_BYTES, self._feed, flow, self._is_open, self.transport.abort)
        self.transport = HeldTransport(self.transport, flow)  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._portions.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated:
            self._portions.add(data)
        else:
            super().data_received(data)  # the handshake, whose size the HTTP protocol has limited

    def _feed(self, data: memoryview) -> None:
        super().data_received(data)  # type: ignore[arg-type]
        if self.conn.parser_exc is not None:
            self._portions.end()

    def _is_open(self) -> bool:
        return not self.read_paused and self.writable.is_set()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    async def receive(self) -> Any:
        message = await super().receive()
        self._go_on()
        return message

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.close":
            self._go_on()  # up to the client's part of the closing handshake

    def _go_on(self) -> None:
        """Parse the bytes that wait. A client whose answer to a ping may be among them gets more time for it."""
        self._portions.go_on()
        if self.pong_timer is not None:
            self.pong_timer.cancel()
            assert self.ping_timeout is not None, "without a time limit there is no timer"
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)

    def keepalive_timeout(self) -> None:
        """Close the connection of a client that has not answered a ping, unless its answer may wait to be parsed."""
        if self._is_open():
            super().keepalive_timeout()
        else:
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()

    def handle_cont(self, event: Frame) -> None:
        if self.close_sent:
            return
        if len(self.frames) == MAX_FRAGMENTS:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"a message has at most {MAX_FRAGMENTS:,} fragments")
            self.handle_parser_exception()
            self._portions.end()
            return
        super().handle_cont(event)
