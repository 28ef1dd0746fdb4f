"""Starts one worker process, monitors it, and replaces it when it fails.

A worker is spawned, receives `Configure`, and sends `Loading` and `Progress` messages, then `Ready` or `LoadFailed`.
After `Ready` it sends heartbeats. If it sends no message for `stale_seconds`, it does not count as ready. If it sends
none for `hang_seconds` (`loading_hang_seconds` before `Ready`), it is killed. A closed socket means that it died. The
next worker starts with a higher epoch, after a pause (`server.ipc.workers.restart_policy`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from server.errors import CheckpointError, StartError
from server.ipc.client.coalescing import Send
from server.ipc.wire.descriptions import (
    Device,
    DeviceChoice,
    EngineOptions,
    ModelInfo,
    ModelSpec,
)
from server.ipc.wire.messages import FromWorker
from server.ipc.wire.model_messages import ModelAnswer
from server.ipc.wire.step_messages import Stats, StepOutput
from server.ipc.wire.worker_messages import (
    Computing,
    Configure,
    LoadFailed,
    PreparingKernels,
    Progress,
    Ready,
    Shutdown,
)
from server.ipc.workers.restart_policy import RestartLimits, RestartPolicy
from server.ipc.workers.weight_memory import WeightMemory
from server.ipc.workers.worker_process import WORKER_COMMAND, WorkerProcess, start_worker

log = logging.getLogger("triptych.supervisor")

POLL_SECONDS = 0.25
MAX_DEATHS_BEFORE_READY = 2
"""The server gives up after this many workers were ended by a signal before any worker became ready. One such end may
come from a short lack of memory. After two, the model needs too much memory or crashes the worker, and would do so
again."""

SupervisorState = Literal["starting", "ready", "restarting", "failed", "stopped"]


class WorkerListener(Protocol):
    """Receives the messages of the workers, as `EngineClient` does. Called on the thread of the event loop.

    epoch: unique number of the worker process, which its messages carry.
    on_lost: the process has failed. on_stopped: the process was stopped, and another process has taken its place.
    """

    def on_progress(self, progress: Progress | PreparingKernels) -> None: ...

    def on_ready(self, models: list[ModelInfo], device: Device, send: Send, epoch: int) -> None: ...

    def on_output(self, output: StepOutput) -> None: ...

    def on_computing(self, epoch: int) -> None: ...

    def on_stats(self, stats: Stats) -> None: ...

    def on_model(self, answer: ModelAnswer) -> None: ...

    def on_lost(self, epoch: int) -> None: ...

    def on_stopped(self, epoch: int) -> None: ...


@dataclass(frozen=True)
class SupervisorLimits(RestartLimits):
    """Time limits of a worker.

    stale_seconds: a worker that sent no message for this time does not count as ready.
    hang_seconds: a ready worker that sent no message for this time is killed.
    loading_hang_seconds: a loading worker that sent no message for this time is killed.
    stop_seconds: time that the worker gets to stop before it is killed.
    """

    stale_seconds: float = 2.0
    hang_seconds: float = 10.0
    loading_hang_seconds: float = 30.0
    stop_seconds: float = 3.0


class Supervisor:
    """Keeps one worker running from `start` to `stop`. All methods must be called on one event loop.

    models, device, options: sent to the worker as its configuration.
    listener: receives the worker's messages.
    limits: time limits and number of restarts.
    command: command that starts a worker process.
    weights: memory for weights that the workers share, or None if each worker has its own weights.
    epochs: yields the epoch of each new worker process; shared by all supervisors of a pool.
    has_others: returns whether other workers answer requests. As long as they do, the supervisor does not give up.
    """

    def __init__(
        self,
        models: Sequence[ModelSpec],
        device: DeviceChoice,
        options: EngineOptions,
        listener: WorkerListener,
        limits: SupervisorLimits | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        weights: WeightMemory | None = None,
        epochs: Iterator[int] | None = None,
        has_others: Callable[[], bool] = lambda: False,
    ) -> None:
        self.models = list(models)
        self.device = device
        self.options = options
        self.epoch = 0
        self.state: SupervisorState = "starting"
        self.num_devices, self.device_bytes = 1, 0
        self.about_device = ""
        self.failure = ""
        self.task: asyncio.Task[None] | None = None
        self._listener = listener
        self._limits = limits or SupervisorLimits()
        self._policy = RestartPolicy(self._limits)
        self._command = tuple(command)
        self._weights = weights
        self._epochs = itertools.count(1) if epochs is None else epochs
        self._has_others = has_others
        self._retired = False
        self._last_message_seconds = 0.0
        self._worker: WorkerProcess | None = None
        self._load_failure: str | None = None
        self._ending = ""
        self._started_seconds = 0.0
        self._ready_seconds: float | None = None
        self._deaths_before_ready = 0
        self._first_ready: asyncio.Future[None] | None = None

    @property
    def fresh(self) -> bool:
        """Whether the worker is ready and sent a message within the last `stale_seconds`."""
        return self.state == "ready" and time.monotonic() - self._last_message_seconds <= self._limits.stale_seconds

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None while no process runs."""
        return self._worker.pid if self._worker is not None else None

    async def start(self) -> None:
        """Start the first worker and wait until it is ready.

        Raises CheckpointError if a model cannot be loaded, and StartError if no worker process becomes ready.
        """
        self._first_ready = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run(), name="supervisor")
        await asyncio.shield(self._first_ready)

    def retire(self) -> None:
        """Do not start another worker after the present one ends."""
        self._retired = True

    async def stop(self) -> None:
        """Ask the worker to stop, kill it if it does not, and wait until its process has ended.

        A worker that loads models has no requests, and may be in a long call of native code. It is killed at once.
        """
        was_ready, self.state = self.state == "ready", "stopped"
        worker = self._worker
        if worker is not None and not was_ready:
            worker.kill()
        elif worker is not None:
            worker.send(Shutdown())
            done, _ = await asyncio.wait({worker.closed}, timeout=self._limits.stop_seconds)
            if not done:
                worker.kill()
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    def kill(self) -> None:
        """Kill the worker without waiting."""
        if self._worker is not None:
            self._worker.kill()

    async def _run(self) -> None:
        assert self._first_ready is not None
        try:
            while True:
                self.epoch = next(self._epochs)
                await self._live()
                if self._is_over():
                    return
                if not self._first_ready.done() and self._load_failure is not None:
                    self.state = "failed"
                    self._first_ready.set_exception(CheckpointError(self._load_failure))
                    return
                now = time.monotonic()
                self._policy.failed(None if self._ready_seconds is None else now - self._ready_seconds)
                reason = self._policy.exhausted
                if not self._first_ready.done() and self._deaths_before_ready >= MAX_DEATHS_BEFORE_READY:
                    reason = f"died {self._deaths_before_ready} times while loading, which would come again"
                if reason is not None and not (self._first_ready.done() and self._has_others()):
                    self._give_up(reason)
                    return
                pause = self._policy.pause_seconds
                log.warning("worker %d %s; starting the next one in %.1f s", self.epoch, self._ending, pause)
                await asyncio.sleep(pause)
        finally:
            if not self._first_ready.done():
                self._first_ready.set_exception(StartError("stopped while loading"))
                self._first_ready.exception()

    def _is_over(self) -> bool:
        return self.state == "stopped" or self._retired

    def _give_up(self, reason: str) -> None:
        assert self._first_ready is not None
        self.state = "failed"
        self.failure = f"a worker {reason}; the last one {self._ending}"
        if not self._first_ready.done():
            self._first_ready.set_exception(StartError(f"{self.failure}; see its output above"))

    async def _live(self) -> None:
        """Run one worker process from its start to its end. Returns without a process if it cannot be started."""
        self._load_failure = None
        self._ending = "did not start"
        self._ready_seconds = None
        self._started_seconds = self._last_message_seconds = time.monotonic()
        epoch = self.epoch
        weights = self._weights.current() if self._weights is not None else None
        inherited = () if weights is None else (weights,)
        try:
            worker = await start_worker(self._command, self._on_message, inherited)
        except OSError as error:
            log.error("cannot start the worker process: %s", error.strerror)
            return
        self._worker = worker
        try:
            worker.send(Configure(epoch, self.device, self.models, self.options, weights))
            await self._watch(worker)
        finally:
            was_ready = self.state == "ready"
            if was_ready:
                self.state = "restarting"
            self._worker = None
            worker.connection.close()
            if was_ready:
                self._listener.on_lost(epoch)
            self._ending = await worker.end(self._limits.stop_seconds)
            self._deaths_before_ready += worker.died

    async def _watch(self, worker: WorkerProcess) -> None:
        """Return when the worker's socket is closed, or after killing a worker that sent no message for too long.

        The time limit must be exceeded in two consecutive checks. If this process itself was suspended (for example on
        a sleeping laptop), heartbeats may have arrived that it has not read yet.
        """
        silent = 0
        while not worker.closed.done():
            await asyncio.wait({worker.closed}, timeout=POLL_SECONDS)
            quiet = time.monotonic() - self._last_message_seconds
            limit = self._limits.hang_seconds if self.state == "ready" else self._limits.loading_hang_seconds
            silent = silent + 1 if quiet > limit else 0
            if silent >= 2:
                doing = "" if self.state == "ready" else " while loading"
                log.error("the worker sent no message for %.1f s%s; killing it", quiet, doing)
                worker.kill()
                return
        if worker.connection.broken:
            worker.kill()

    def _on_message(self, message: FromWorker) -> None:
        if message.epoch != self.epoch:
            return
        self._last_message_seconds = time.monotonic()
        if isinstance(message, StepOutput):
            self._listener.on_output(message)
        elif isinstance(message, Computing):
            self._listener.on_computing(message.epoch)
        elif isinstance(message, Stats):
            self._listener.on_stats(message)
        elif isinstance(message, ModelAnswer):
            self._listener.on_model(message)
        elif isinstance(message, Progress | PreparingKernels):
            if self.options.worker_index == 0:  # all workers read the same files
                self._listener.on_progress(message)
        elif isinstance(message, Ready):
            self._on_ready(message)
        elif isinstance(message, LoadFailed):
            self._load_failure = message.message
            if self._first_ready is None or self._first_ready.done():
                # Before the first worker is ready, `start` raises the failure, and its caller reports it.
                log.error("%s", message.message)

    def _on_ready(self, message: Ready) -> None:
        if self.state == "stopped" or self._worker is None or self._first_ready is None:
            return
        self.state = "ready"
        self._ready_seconds = time.monotonic()
        self.num_devices, self.device_bytes = message.num_devices, message.device_bytes
        self.about_device = message.about_device
        if self._first_ready.done():
            seconds = self._ready_seconds - self._started_seconds
            log.warning("worker %d is ready after %.1f s; requests are answered again", self.epoch, seconds)
        self._listener.on_ready(message.models, message.device, self._worker.send, self.epoch)
        if not self._first_ready.done():
            self._first_ready.set_result(None)
