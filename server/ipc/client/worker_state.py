"""The engine client's view of one worker: where its messages go, and how much work it has."""

from __future__ import annotations

import time
from collections.abc import Sequence

from server.ipc.client.coalescing import MessageCoalescer
from server.ipc.wire.messages import Stats

WAITING_LOAD, RUNNING_LOAD = 4, 1
"""A waiting sequence delays a new one more than a running sequence, whose prompt is computed already."""


class WorkerState:
    """One ready worker.

    epoch: see `Configure`.
    outbox: sends messages to it.
    is_retired: it gets no further requests.
    models: names of the models and adapters that it has.
    waiting: sequences (items of an `Encode`) that were sent and have not started.
    running: sequences that have started. open: sequences that have not ended; an `Encode` counts once.
    stats: its last statistics.
    last_message_seconds: time of its last message. last_computed_seconds: time at which it last computed something.
    computing: ids of the sequences that its last output reported as computed, see `StepOutput.computing`.
    """

    __slots__ = (
        "computing",
        "epoch",
        "is_retired",
        "last_computed_seconds",
        "last_message_seconds",
        "models",
        "open",
        "outbox",
        "running",
        "stats",
        "waiting",
    )

    def __init__(self, epoch: int, outbox: MessageCoalescer) -> None:
        self.epoch = epoch
        self.outbox = outbox
        self.is_retired = False
        self.models: set[str] = set()
        self.waiting = 0
        self.running = 0
        self.open = 0
        self.stats: Stats | None = None
        self.last_message_seconds = self.last_computed_seconds = time.monotonic()
        self.computing: Sequence[int] = ()

    @property
    def load(self) -> int:
        """Work of the worker, to compare it with others."""
        return WAITING_LOAD * self.waiting + RUNNING_LOAD * self.running
