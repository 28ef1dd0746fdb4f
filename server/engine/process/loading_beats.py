"""Heartbeats of a worker that loads models, sent by the thread that loads.

A timer signal interrupts the main thread between two Python instructions, and its handler sends `Loading`. A beat
therefore proves that the thread makes progress. A helper thread would send beats even if the loading thread hung.
Operations in native code delay a beat until they return.
"""

from __future__ import annotations

import contextlib
import signal

from server.engine.process.worker_socket import ConnectionClosed, WorkerSocket
from server.ipc.wire.worker_messages import Loading

BEAT_SECONDS = 1.0


class LoadingBeats:
    """Sends a beat every `BEAT_SECONDS` until `stop`. Does nothing on systems without timer signals."""

    def __init__(self, connection: WorkerSocket, epoch: int) -> None:
        self._connection = connection
        self._beat = Loading(epoch)
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, self._send)
            # System calls of libraries continue after the signal.
            signal.siginterrupt(signal.SIGALRM, False)
            signal.setitimer(signal.ITIMER_REAL, BEAT_SECONDS, BEAT_SECONDS)

    def stop(self) -> None:
        """Send no further beats. May be called more than once."""
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def _send(self, number: int, frame: object) -> None:
        with contextlib.suppress(ConnectionClosed):  # the main thread detects the closed connection itself
            self._connection.send_between(self._beat)
