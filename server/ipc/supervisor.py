"""Start the worker process, monitor it, and replace it when it fails.

A worker is spawned, receives `Configure`, and sends `Progress` messages, then `Ready` or `LoadFailed`. After `Ready` it
sends heartbeats. Without a message for `stale_seconds` the server is not ready; after `hang_seconds` the worker is
killed. A closed socket means that it died. The next worker starts with a higher epoch, after a pause that doubles with
each consecutive failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from server.errors import CheckpointError, StartError
from server.ipc.coalescing import Send
from server.ipc.descriptions import (
    Device,
    DeviceChoice,
    EngineOptions,
    ModelInfo,
    ModelSpec,
)
from server.ipc.messages import (
    Configure,
    FromWorker,
    LoadFailed,
    Progress,
    Ready,
    Shutdown,
    Stats,
    StepOutput,
)
from server.ipc.worker_connection import WorkerConnection

log = logging.getLogger("triptych.supervisor")

WORKER_COMMAND = (sys.executable, "-P", "-m", "server.engine.worker")

SupervisorState = Literal["starting", "ready", "restarting", "failed", "stopped"]


class WorkerListener(Protocol):
    """Receives the messages of the worker (the client of the engine). Called on the event loop's thread."""

    def on_progress(self, progress: Progress) -> None: ...

    def on_ready(self, models: list[ModelInfo], device: Device, send: Send) -> None: ...

    def on_output(self, output: StepOutput) -> None: ...

    def on_stats(self, stats: Stats) -> None: ...

    def on_lost(self) -> None: ...


@dataclass(frozen=True)
class SupervisorLimits:
    """Time limits of the supervisor, and the number of restarts.

    stale_seconds: without a message for this time, the worker is not ready.
    hang_seconds: without a message for this time, the worker is killed.
    first_pause_seconds, longest_pause_seconds: pause before a restart; doubles with each consecutive failure.
    stop_seconds: time that the worker gets to stop before it is killed.
    max_failures: consecutive failures after which the supervisor gives up.
    """

    stale_seconds: float = 2.0
    hang_seconds: float = 10.0
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 10.0
    stop_seconds: float = 3.0
    max_failures: int = 6


class Supervisor:
    """Keeps one worker running from `start` to `stop`. All methods must be called on one event loop.

    models, device, options: sent to the worker as its configuration.
    listener: receives the worker's messages.
    limits: time limits and number of restarts.
    command: command that starts a worker process.
    """

    def __init__(
        self,
        models: Sequence[ModelSpec],
        device: DeviceChoice,
        options: EngineOptions,
        listener: WorkerListener,
        limits: SupervisorLimits | None = None,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self.models = list(models)
        self.device = device
        self.options = options
        self.epoch = 0
        self.state: SupervisorState = "starting"
        self._listener = listener
        self._limits = limits or SupervisorLimits()
        self._command = tuple(command)
        self._last_message_seconds = 0.0
        self._connection: WorkerConnection | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._load_failure: str | None = None
        self._ending = ""
        self._killed = False
        self._started_seconds = 0.0
        self._task: asyncio.Task[None] | None = None
        self._first_ready: asyncio.Future[None] | None = None

    @property
    def fresh(self) -> bool:
        """Whether a worker is ready and sent a message within the last `stale_seconds`."""
        return self.state == "ready" and time.monotonic() - self._last_message_seconds <= self._limits.stale_seconds

    @property
    def pid(self) -> int | None:
        """Process id of the worker, or None."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the first worker and wait until it is ready.

        Raises CheckpointError when a model cannot be loaded, StartError when no worker process becomes ready.
        """
        self._first_ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name="supervisor")
        await asyncio.shield(self._first_ready)

    async def stop(self) -> None:
        """Ask the worker to stop, kill it if it does not, and wait until its process has ended."""
        self.state = "stopped"
        if self._connection is not None:
            self._connection.send(Shutdown())
            done, _ = await asyncio.wait({self._connection.closed}, timeout=self._limits.stop_seconds)
            if not done:
                self.kill()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def kill(self) -> None:
        """Kill the worker without waiting."""
        if self._process is not None and self._process.returncode is None:
            self._killed = True
            self._process.kill()

    async def _run(self) -> None:
        assert self._first_ready is not None
        failures = 0
        try:
            while True:
                self.epoch += 1
                was_ready = await self._live()
                if self._stopped():
                    return
                failures = 1 if was_ready else failures + 1
                if not self._first_ready.done() and self._load_failure is not None:
                    self.state = "failed"
                    self._first_ready.set_exception(CheckpointError(self._load_failure))
                    return
                if failures >= self._limits.max_failures:
                    self.state = "failed"
                    if self._first_ready.done():
                        log.error("the worker failed %d times in a row; giving up", failures)
                    else:
                        self._first_ready.set_exception(
                            StartError(f"the worker process failed to start {failures} times; see its output above")
                        )
                    return
                pause = min(self._limits.first_pause_seconds * 2 ** (failures - 1), self._limits.longest_pause_seconds)
                log.warning("worker %d %s; starting the next one in %.1f s", self.epoch, self._ending, pause)
                await asyncio.sleep(pause)
        finally:
            if not self._first_ready.done():
                self._first_ready.set_exception(StartError("stopped while loading"))
                self._first_ready.exception()

    def _stopped(self) -> bool:
        return self.state == "stopped"

    async def _live(self) -> bool:
        """Run one worker from spawn to the end of its process. Returns whether it was ready."""
        ours, theirs = socket.socketpair()
        self._load_failure = None
        self._ending = "did not start"
        self._killed = False
        self._started_seconds = time.monotonic()
        connection: WorkerConnection | None = None
        process: asyncio.subprocess.Process | None = None
        try:
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: WorkerConnection(self._on_message), sock=ours
                )
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    "--fd",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    env=_environment(),
                )
            except OSError as error:
                log.error("cannot start the worker process: %s", error.strerror)
                return False
            finally:
                theirs.close()
            self._connection, self._process = connection, process
            connection.send(Configure(self.epoch, self.device, self.models, self.options))
            await self._watch(connection)
            return self.state == "ready"
        finally:
            was_ready = self.state == "ready"
            if was_ready:
                self.state = "restarting"
            self._connection = None
            if connection is not None:
                connection.close()
            else:
                ours.close()
            if was_ready:
                self._listener.on_lost()
            if process is not None:
                await _reap(process, self._limits.stop_seconds)
                self._ending = _describe_ending(process.pid, process.returncode, self._killed)
            self._process = None

    async def _watch(self, connection: WorkerConnection) -> None:
        """Return when the worker's socket is closed, or after killing a worker that sent nothing for `hang_seconds`.

        The time limit must be exceeded in two consecutive checks. After this process itself was suspended (a laptop
        asleep), heartbeats may have arrived that are not read yet.
        """
        silent = 0
        while not connection.closed.done():
            await asyncio.wait({connection.closed}, timeout=0.25)
            quiet = time.monotonic() - self._last_message_seconds
            hung = self.state == "ready" and quiet > self._limits.hang_seconds
            silent = silent + 1 if hung else 0
            if silent >= 2:
                log.error("the worker sent no message for %.1f s; killing it", quiet)
                self.kill()
                return
        if connection.broken:
            self.kill()

    def _on_message(self, message: FromWorker) -> None:
        if message.epoch != self.epoch:
            return
        self._last_message_seconds = time.monotonic()
        if isinstance(message, StepOutput):
            self._listener.on_output(message)
        elif isinstance(message, Stats):
            self._listener.on_stats(message)
        elif isinstance(message, Progress):
            self._listener.on_progress(message)
        elif isinstance(message, Ready):
            self._on_ready(message)
        elif isinstance(message, LoadFailed):
            self._load_failure = message.message
            if self._first_ready is None or self._first_ready.done():
                # Before the first worker is ready, `start` raises the failure, and its caller reports it.
                log.error("%s", message.message)

    def _on_ready(self, message: Ready) -> None:
        if self.state == "stopped" or self._connection is None:
            return
        self.state = "ready"
        if self.epoch > 1:
            seconds = time.monotonic() - self._started_seconds
            log.warning("worker %d is ready after %.1f s; requests are answered again", self.epoch, seconds)
        self._listener.on_ready(message.models, message.device, self._connection.send)
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_result(None)


def _environment() -> dict[str, str]:
    """Environment of the worker process. It must import the same `server` package from any working directory."""
    root = str(Path(__file__).resolve().parents[2])
    earlier = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": root + os.pathsep + earlier if earlier else root}


def _describe_ending(pid: int, status: int | None, killed: bool) -> str:
    """How a process ended.

    status: exit status, or the negative number of the signal that killed it.
    killed: the supervisor killed it.
    """
    if status is None or status >= 0:
        return f"(process {pid}) ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", perhaps because the machine ran out of memory" if name == "SIGKILL" and not killed else ""
    return f"(process {pid}) was killed by {name}{hint}"


async def _reap(process: asyncio.subprocess.Process, timeout_seconds: float) -> None:
    """Wait until a process has ended. Kills it if it has not ended after `timeout_seconds`."""
    try:
        await asyncio.wait_for(process.wait(), timeout_seconds)
    except (TimeoutError, asyncio.CancelledError):
        if process.returncode is None:
            process.kill()
        await process.wait()
    log.debug("worker %d ended with status %s", process.pid, process.returncode)
