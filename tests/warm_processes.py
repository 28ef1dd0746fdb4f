"""Start `triptych` commands in a fork of one process that has imported the server and torch.

A new interpreter needs three seconds of processor time for these imports, twice for a server with its worker. Tests
that check answers or messages use `WarmProcess`; tests of the start itself, of signals and of memory start a new
interpreter. The process that forks computes nothing, so that it has no OpenMP threads, which a fork would lose.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

REPOSITORY = Path(__file__).resolve().parents[1]
_MAX_REQUEST_BYTES = 1 << 18
_channel: socket.socket | None = None


class WarmProcess:
    """A running `triptych` command, with the methods of `subprocess.Popen` that tests use.

    arguments: arguments of the command line, without the name of the command.
    stdout, stderr, stdin: descriptors; the standard input is empty by default.
    worker: command that starts a worker process, by default a fork with the worker of the product.
    environment: variables added to those of this process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        stdout: int,
        stderr: int,
        worker: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: int | None = None,
    ) -> None:
        request = {"arguments": arguments, "worker": worker, "environment": os.environ | dict(environment or {})}
        self.returncode: int | None = None
        self._status, status = os.pipe()
        empty = os.open(os.devnull, os.O_RDONLY)
        try:
            channel = _forking_process()
            descriptors = [empty if stdin is None else stdin, stdout, stderr, status]
            socket.send_fds(channel, [json.dumps(request).encode()], descriptors)
            self.pid = int(channel.recv(64))
        finally:
            os.close(status), os.close(empty)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("triptych", timeout or 0)
            self.returncode = int(os.read(self._status, 64))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(*arguments: str, input: str = "", timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a `triptych` command to its end. Returns its status and output, like `subprocess.run`."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(os.memfd_create("file"), "w+", encoding="utf-8")) for _ in range(3)]
        source, out, err = files
        source.write(input)
        source.seek(0)
        process = WarmProcess(arguments, out.fileno(), err.fileno(), stdin=source.fileno())
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(list(arguments), status, out.read(), err.read())


def _forking_process() -> socket.socket:
    """The socket to the process that forks. The first call starts this process."""
    global _channel
    if _channel is None:
        _channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-m", "tests.warm_processes", str(theirs.fileno())],
                cwd=REPOSITORY,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
    return _channel


# ------------------------------------------------------------------------------------------------ the forking process


def _main(descriptor: int) -> None:
    """Fork for each request, and write the exit status of each fork to its pipe, until the channel is closed."""

    gc.collect()
    gc.freeze()
    channel = socket.socket(fileno=descriptor)
    pipes: dict[int, int] = {}
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([channel, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _collect(pipes)
        if channel in ready:
            data, descriptors, _, _ = socket.recv_fds(channel, _MAX_REQUEST_BYTES, 4)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                _run_command(json.loads(data), *descriptors[:3])
            *others, pipes[pid] = descriptors
            for other in others:
                os.close(other)
            channel.send(str(pid).encode())


def _collect(pipes: dict[int, int]) -> None:
    while pipes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = pipes.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(pipe)


def _run_command(request: dict[str, Any], stdin: int, stdout: int, stderr: int) -> NoReturn:
    from server.cli import main
    from server.ipc.workers.worker_process import WORKER_COMMAND

    def command() -> None:
        if request["worker"] is None:
            start = asyncio.create_subprocess_exec

            async def fork_workers(*argv: str, **options: Any) -> Any:
                if argv[: len(WORKER_COMMAND)] != WORKER_COMMAND:
                    return await start(*argv, **options)
                return _ForkedWorker(argv[len(WORKER_COMMAND) :], options["pass_fds"], options["env"])

            asyncio.create_subprocess_exec = fork_workers  # type: ignore[assignment]
        main(request["arguments"], request["worker"])

    for number, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _become(command, [], request["environment"])


class _ForkedWorker:
    """A worker process that is a fork of the server, with those attributes of `asyncio.subprocess.Process` we use."""

    def __init__(self, arguments: Sequence[str], descriptors: Sequence[int], environment: Mapping[str, str]) -> None:
        from server.engine.process.worker import main

        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(lambda: sys.exit(main(list(arguments))), descriptors, environment)
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._descriptor = os.pidfd_open(self.pid)
        self._loop.add_reader(self._descriptor, self._collect)

    def _collect(self) -> None:
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._ended.set_result(self.returncode)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        return int(await asyncio.shield(self._ended))


def _become(command: Callable[[], None], descriptors: Sequence[int], environment: Mapping[str, str]) -> NoReturn:
    """Run a command in a forked process as if it were a new process, and exit with its status.

    descriptors: the file descriptors that stay open, besides standard input, output and error.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    kept = [2, *sorted(descriptors), 1 << 16]
    for low, high in pairwise(kept):
        os.closerange(low + 1, high)
    sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    status = 0
    try:
        command()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
