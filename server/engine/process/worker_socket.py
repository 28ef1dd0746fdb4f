"""Sends and receives messages over the worker's end of the socket, without blocking.

Bytes that do not fit into the socket buffer are kept and sent before the next message, so that frames stay whole.
"""

from __future__ import annotations

import select
import socket
import threading

from server.ipc.wire.frames import FrameReader, encode_frame
from server.ipc.wire.message_base import Message
from server.ipc.wire.messages import ToWorker, decode_to_worker

MAX_UNSENT_BYTES = 64 << 20
"""If more bytes than this are unsent, `send` blocks, so that the worker does not run out of memory."""
_CHUNK_BYTES = 1 << 18


class ConnectionClosed(Exception):
    """The HTTP process has closed the connection."""


class WorkerSocket:
    """The worker's end of the socket to the HTTP process. The constructor makes the socket non-blocking.

    num_sent: number of messages that `send` has sent.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._frames = FrameReader(decode_to_worker)
        # The buffer is reused: mapping and unmapping a new one of this size costs 14 us per call.
        self._chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._unsent = bytearray()
        self._sending = threading.Lock()
        self.num_sent = 0

    def receive(self, timeout_seconds: float | None) -> list[ToWorker]:
        """Read all complete messages, and send unsent bytes.

        timeout_seconds: maximum time to wait for the first byte; None waits without a limit.
        Raises ConnectionClosed if the other end is closed, and the errors of `FrameReader.read` for invalid frames.
        """
        writers = [self._socket] if self._unsent else []
        readable, writable, _ = select.select([self._socket], writers, [], timeout_seconds)
        if writable:
            with self._sending:
                self._flush()
        return self._read() if readable else []

    def receive_some(self) -> list[ToWorker]:
        """Wait until at least one message is complete, and return all complete messages. Raises as `receive` does."""
        messages: list[ToWorker] = []
        while not messages:
            messages = self.receive(None)
        return messages

    def send(self, message: Message) -> None:
        """Send a message. Bytes that do not fit into the socket buffer are sent later.

        Raises ConnectionClosed if the other end is closed.
        """
        with self._sending:
            self.num_sent += 1
            self._unsent += encode_frame(message)
            self._flush()
            while len(self._unsent) > MAX_UNSENT_BYTES:
                select.select([], [self._socket], [])
                self._flush()

    def send_between(self, message: Message) -> None:
        """Send a heartbeat from a signal handler or another thread, unless a message is being sent or waits to be sent.

        Raises ConnectionClosed if the other end is closed.
        """
        if self._sending.acquire(blocking=False):
            try:
                if not self._unsent:
                    self._unsent += encode_frame(message)
                self._flush()
            finally:
                self._sending.release()

    def drain(self, timeout_seconds: float) -> None:
        """Wait until all bytes are sent. Returns early if none could be sent for `timeout_seconds`."""
        while self._unsent:
            if not select.select([], [self._socket], [], timeout_seconds)[1]:
                return
            with self._sending:
                self._flush()

    def _read(self) -> list[ToWorker]:
        messages: list[ToWorker] = []
        while True:
            try:
                size = self._socket.recv_into(self._chunk)
            except BlockingIOError:
                return messages
            except OSError as error:
                raise ConnectionClosed from error
            if not size:
                raise ConnectionClosed
            messages += self._frames.read(self._chunk[:size])
            if size < _CHUNK_BYTES:
                return messages

    def _flush(self) -> None:
        while self._unsent:
            try:
                with memoryview(self._unsent) as unsent, unsent[:_CHUNK_BYTES] as chunk:
                    sent = self._socket.send(chunk)
            except BlockingIOError:
                return
            except OSError as error:
                raise ConnectionClosed from error
            del self._unsent[:sent]
