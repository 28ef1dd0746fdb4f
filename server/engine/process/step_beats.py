"""Heartbeats of a worker during a long step. They tell a worker that computes from a worker that hangs.

The main loop sends messages only between its steps, and the first steps of a long prompt may take longer than
`--hang-seconds` on a slow or busy machine. A step may be a single call of native code, in which no Python code of the
main thread runs. So a second thread watches how much processor time the main thread uses, and sends the beats.

A worker that is stopped, or whose main thread waits for a lock that is never released, uses no processor time and sends
no beat. A worker whose main thread computes without end is replaced too: the beats end `MAX_STEP_SECONDS` after its
last message, or later if the step has a long text (`Engine.step_seconds`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from server.engine.process.worker_socket import ConnectionClosed, WorkerSocket
from server.ipc.wire.time_limits import NO_PROGRESS_SECONDS
from server.ipc.wire.worker_messages import Computing

BEAT_SECONDS = 0.5
"""Seconds between two beats. Shorter than `--stale-seconds`, so that a worker in a long step stays ready."""
MIN_PROCESSOR_SHARE = 0.01
"""A main thread that computes uses processor time for at least this part of the elapsed time. The value is low because
the thread may share its core with many others."""
MAX_STEP_SECONDS = NO_PROGRESS_SECONDS
"""Longest time for which beats are sent without a message of the main thread, unless the step has a long text."""


class StepBeats:
    """Sends beats from a thread until `stop`. It watches the thread that creates it, which must be the main thread.

    connection: connection over which the main thread sends its messages.
    epoch: unique number of this worker process, part of each beat.
    max_seconds: returns the longest time that the step in progress may take.
    """

    def __init__(
        self, connection: WorkerSocket, epoch: int, max_seconds: Callable[[], float] = lambda: MAX_STEP_SECONDS
    ) -> None:
        self._connection = connection
        self._beat = Computing(epoch)
        self._max_seconds = max_seconds
        self._clock = time.pthread_getcpuclockid(threading.get_ident()) if _HAS_THREAD_CLOCKS else None
        self._watch = Watch(time.monotonic())
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="step beats", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send no further beats."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS):
            now, sent = time.monotonic(), self._connection.num_sent
            if self._watch.is_computing(now, self._processor_seconds(), sent, self._max_seconds()):
                with contextlib.suppress(ConnectionClosed):  # the main thread detects the closed connection itself
                    self._connection.send_between(self._beat)

    def _processor_seconds(self) -> float:
        """Processor time of the main thread in seconds.

        On systems without clocks for threads, it is the processor time of all threads.
        """
        return time.process_time() if self._clock is None else time.clock_gettime(self._clock)


class Watch:
    """Tells from periodic measurements whether the main thread is computing a step.

    now: time of the first measurement, in seconds of `time.monotonic()`.
    """

    def __init__(self, now: float) -> None:
        self._seen_at = self._sent_at = now
        self._processor_seconds = 0.0
        self._num_sent = 0

    def is_computing(
        self, now: float, processor_seconds: float, num_sent: int, max_seconds: float = MAX_STEP_SECONDS
    ) -> bool:
        """Whether to send a beat: since the last call, the main thread has sent no message but has used processor time.

        now: seconds of `time.monotonic()`.
        processor_seconds: processor time of the main thread so far.
        num_sent: number of messages that the main thread has sent so far.
        max_seconds: longest time without a message. After it, the result is False.
        """
        used, passed = processor_seconds - self._processor_seconds, now - self._seen_at
        self._processor_seconds, self._seen_at = processor_seconds, now
        if num_sent != self._num_sent:
            self._num_sent, self._sent_at = num_sent, now
            return False
        return now - self._sent_at <= max_seconds and used >= MIN_PROCESSOR_SHARE * passed


_HAS_THREAD_CLOCKS = hasattr(time, "pthread_getcpuclockid")
