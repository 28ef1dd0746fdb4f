"""The engine client's data about one worker: how messages reach it, its models, and how much work it has."""

from __future__ import annotations

import time
from collections.abc import Sequence

from server.ipc.client.coalescing import MessageCoalescer
from server.ipc.wire.step_messages import Stats

WAITING_LOAD, RUNNING_LOAD = 4, 1
"""Weights of a waiting and of a running sequence in the load of a worker. A waiting sequence delays a new sequence more
than a running one does, because the prompt of a running sequence is already computed."""


class WorkerState:
    """One ready worker.

    epoch: unique number of the worker process, which its messages carry.
    outbox: sends messages to the worker.
    is_retired: whether the worker gets no further requests.
    models: names of the models and adapters that the worker has.
    waiting: number of sequences (items of an `Encode`) that were sent and have not started.
    running: number of sequences that have started and not ended.
    open: number of sequences that have not ended; an `Encode` counts once.
    stats: last statistics of the worker; None before the first ones.
    last_message_seconds: time of the last message, in seconds of `time.monotonic()`.
    last_computed_seconds: time at which the worker last reported computed work, in seconds of `time.monotonic()`.
    computing: ids of the sequences in `StepOutput.computing` of its last output.
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
        """Amount of work of the worker, as a weighted number of sequences, to compare workers."""
        return WAITING_LOAD * self.waiting + RUNNING_LOAD * self.running
