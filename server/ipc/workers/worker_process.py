"""Starts and ends one worker process, with the server's end of its socket."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from server.ipc.wire.message_base import Message
from server.ipc.wire.messages import FromWorker
from server.ipc.workers.worker_protocol import WorkerProtocol

log = logging.getLogger("triptych.supervisor")

WORKER_COMMAND = (sys.executable, "-P", "-m", "server.engine.process.worker")


class WorkerProcess:
    """A running worker process. Create it with `start_worker`.

    connection: the server's end of the socket to the process.
    """

    def __init__(self, process: asyncio.subprocess.Process, connection: WorkerProtocol) -> None:
        self.connection = connection
        self._process = process
        self._killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def closed(self) -> asyncio.Future[None]:
        """Future that is done when the socket is closed, because the process has ended or sent an invalid message."""
        return self.connection.closed

    def send(self, *messages: Message) -> None:
        self.connection.send(*messages)

    def kill(self) -> None:
        """Kill the process without waiting."""
        if self._process.returncode is None:
            self._killed = True
            self._process.kill()

    @property
    def died(self) -> bool:
        """Whether a signal ended the process that `kill` did not send: a crash, or the kernel for lack of memory."""
        return (self._process.returncode or 0) < 0 and not self._killed

    async def end(self, timeout_seconds: float) -> str:
        """Close the socket, and wait for the end of the process. Returns a description of how it ended, for the log.

        timeout_seconds: time after which the process is killed.
        """
        self.connection.close()
        try:
            await asyncio.wait_for(self._process.wait(), timeout_seconds)
        except (TimeoutError, asyncio.CancelledError):
            self.kill()
            await self._process.wait()
        log.debug("worker process %d ended with status %s", self.pid, self._process.returncode)
        return _describe_ending(self.pid, self._process.returncode, self._killed)


async def start_worker(
    command: Sequence[str], on_message: Callable[[FromWorker], None], descriptors: Sequence[int] = ()
) -> WorkerProcess:
    """Start a worker process.

    command: command of the process. `--fd N` is added to it, where N is the process's end of the socket.
    on_message: called with each message of the worker.
    descriptors: further file descriptors that the process inherits.
    Raises OSError if the process cannot be started.
    """
    ours, theirs = socket.socketpair()
    try:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: WorkerProtocol(on_message), sock=ours)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                "--fd",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(), *descriptors),
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )
        except BaseException:
            connection.close()
            raise
        return WorkerProcess(process, connection)
    finally:
        theirs.close()


def _environment() -> dict[str, str]:
    """Environment of the worker process, with which it imports the same `server` package from any directory."""
    root = str(Path(__file__).resolve().parents[3])
    earlier = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": root + os.pathsep + earlier if earlier else root}


def _describe_ending(pid: int, status: int | None, killed: bool) -> str:
    """A description of how a process ended, for the log.

    status: exit status, or the negative number of the signal that ended the process.
    killed: whether the supervisor killed the process.
    """
    if status is None or status >= 0:
        return f"(process {pid}) ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", perhaps because the machine ran out of memory" if name == "SIGKILL" and not killed else ""
    return f"(process {pid}) was killed by {name}{hint}"
