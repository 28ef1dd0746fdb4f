"""Starts the worker, watches it, replaces it. Knows processes and messages; not requests, models' text or HTTP.

A worker's life: spawn, `Configure`, `Progress`..., then `Ready` and heartbeats, or `LoadFailed`. From `Ready` on,
silence longer than `stale_seconds` makes it not ready, longer than `hang_seconds` gets it killed; a closed socket means
it is dead. Then the next life starts, with a higher epoch, after a pause that doubles with each failure in a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, cast

import msgspec

from server.errors import CheckpointError, StartError
from server.ipc.descriptions import (
    Device,
    DeviceChoice,
    EngineOptions,
    ModelInfo,
    ModelSpec,
)
from server.ipc.gathering import Send
from server.ipc.messages import (
    FRAME_HEADER,
    Configure,
    FromWorker,
    LoadFailed,
    Message,
    Progress,
    Ready,
    Shutdown,
    Stats,
    StepOutput,
    decode_from_worker,
    encode_frame,
)

log = logging.getLogger("triptych.supervisor")

WORKER_COMMAND = (sys.executable, "-P", "-m", "server.engine.worker")
MAX_FRAME_BYTES = 1 << 30

State = Literal["starting", "ready", "restarting", "failed", "stopped"]


class Listener(Protocol):
    """Who hears of the worker: the client, on the event loop's thread."""

    def on_progress(self, progress: Progress) -> None: ...

    def on_ready(self, models: list[ModelInfo], device: Device, send: Send) -> None: ...

    def on_output(self, output: StepOutput) -> None: ...

    def on_stats(self, stats: Stats) -> None: ...

    def on_lost(self) -> None: ...


@dataclass(frozen=True)
class Patience:
    """How long to wait for what, in seconds, and how often to try again."""

    stale_seconds: float = 2.0
    hang_seconds: float = 10.0
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 10.0
    stop_seconds: float = 3.0
    max_failures: int = 6


class _Channel(asyncio.Protocol):
    """Frames in and out of one worker's socket."""

    def __init__(self, on_message: Callable[[FromWorker], None]) -> None:
        self._on_message = on_message
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= FRAME_HEADER.size:
            (length,) = FRAME_HEADER.unpack_from(buffer, start)
            end = start + FRAME_HEADER.size + length
            if length > MAX_FRAME_BYTES:
                self._break(f"a frame of {length} bytes")
                return
            if len(buffer) < end:
                break
            try:
                message = decode_from_worker(bytes(buffer[start + FRAME_HEADER.size : end]))
            except msgspec.MsgspecError as error:
                self._break(str(error))
                return
            self._on_message(message)
            start = end
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def send(self, *messages: Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join([encode_frame(message) for message in messages]))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _break(self, reason: str) -> None:
        log.error("the worker sent something that is no message (%s); replacing it", reason)
        self.broken = True
        self.close()


class Supervisor:
    """One worker at a time, from `start` to `stop`. All methods belong to one event loop."""

    def __init__(
        self,
        models: Sequence[ModelSpec],
        device: DeviceChoice,
        options: EngineOptions,
        listener: Listener,
        patience: Patience | None = None,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self.models = list(models)
        self.device = device
        self.options = options
        self.epoch = 0
        self.state: State = "starting"
        self._listener = listener
        self._patience = patience or Patience()
        self._command = tuple(command)
        self._last_heard = 0.0
        self._channel: _Channel | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._load_failure: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._first_ready: asyncio.Future[None] | None = None

    @property
    def fresh(self) -> bool:
        """Whether a worker is ready and was heard of within `stale_seconds`."""
        return self.state == "ready" and time.monotonic() - self._last_heard <= self._patience.stale_seconds

    @property
    def pid(self) -> int | None:
        """The worker's process id, while there is one."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the first worker and return when it is ready.

        Raises CheckpointError when a model cannot be loaded, StartError when no worker comes up at all.
        """
        self._first_ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name="supervisor")
        await asyncio.shield(self._first_ready)

    async def stop(self) -> None:
        """End the worker, gently and then not, and wait until it is reaped."""
        self.state = "stopped"
        if self._channel is not None:
            self._channel.send(Shutdown())
            done, _ = await asyncio.wait({self._channel.closed}, timeout=self._patience.stop_seconds)
            if not done:
                self.kill()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def kill(self) -> None:
        """End the worker without a word, for when this process is about to end too."""
        if self._process is not None and self._process.returncode is None:
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
                if failures >= self._patience.max_failures:
                    self.state = "failed"
                    log.error("the worker failed %d times in a row before it was ready; giving up", failures)
                    if not self._first_ready.done():
                        self._first_ready.set_exception(StartError("the worker does not start; see its output above"))
                    return
                pause = min(
                    self._patience.first_pause_seconds * 2 ** (failures - 1), self._patience.longest_pause_seconds
                )
                log.warning("the worker is gone (life %d); starting another in %.1f s", self.epoch, pause)
                await asyncio.sleep(pause)
        finally:
            if not self._first_ready.done():
                self._first_ready.set_exception(StartError("stopped while loading"))
                self._first_ready.exception()

    def _stopped(self) -> bool:
        return self.state == "stopped"

    async def _live(self) -> bool:
        """One life of a worker, from spawn to reaped. Returns whether it had become ready."""
        ours, theirs = socket.socketpair()
        self._load_failure = None
        channel: _Channel | None = None
        process: asyncio.subprocess.Process | None = None
        try:
            try:
                _, channel = await asyncio.get_running_loop().create_connection(
                    lambda: _Channel(self._on_message), sock=ours
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
                log.error("cannot start a worker: %s", error.strerror)
                return False
            finally:
                theirs.close()
            self._channel, self._process = channel, process
            channel.send(Configure(self.epoch, self.device, self.models, self.options))
            await self._watch(channel)
            return self.state == "ready"
        finally:
            was_ready = self.state == "ready"
            if was_ready:
                self.state = "restarting"
            self._channel = None
            if channel is not None:
                channel.close()
            else:
                ours.close()
            if was_ready:
                self._listener.on_lost()
            if process is not None:
                await _reap(process, self._patience.stop_seconds)
            self._process = None

    async def _watch(self, channel: _Channel) -> None:
        """Return when the worker's socket closed, or when it was silent for too long twice in a row.

        Twice, because after a pause of this very process (a laptop asleep) heartbeats may lie unread.
        """
        silent = 0
        while not channel.closed.done():
            await asyncio.wait({channel.closed}, timeout=0.25)
            quiet = time.monotonic() - self._last_heard
            hung = self.state == "ready" and quiet > self._patience.hang_seconds
            silent = silent + 1 if hung else 0
            if silent >= 2:
                log.error("the worker was silent for %.1f s; killing it", quiet)
                self.kill()
                return
        if channel.broken:
            self.kill()

    def _on_message(self, message: FromWorker) -> None:
        if message.epoch != self.epoch:
            return
        self._last_heard = time.monotonic()
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
            log.error("%s", message.message)

    def _on_ready(self, message: Ready) -> None:
        if self.state == "stopped" or self._channel is None:
            return
        self.state = "ready"
        self._listener.on_ready(message.models, message.device, self._channel.send)
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_result(None)


def _environment() -> dict[str, str]:
    """The worker's environment: it must find this very `server` package, whatever directory we are in."""
    root = str(Path(__file__).resolve().parents[2])
    earlier = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": root + os.pathsep + earlier if earlier else root}


async def _reap(process: asyncio.subprocess.Process, patience_seconds: float) -> None:
    """Wait until the process is gone; one that has closed its socket but lingers is killed."""
    try:
        await asyncio.wait_for(process.wait(), patience_seconds)
    except (TimeoutError, asyncio.CancelledError):
        if process.returncode is None:
            process.kill()
        await process.wait()
    log.debug("worker %d ended with status %s", process.pid, process.returncode)
