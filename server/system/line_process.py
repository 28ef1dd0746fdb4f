"""A child process that reads requests and writes replies, each one line of JSON, with a time limit for each reply.

Bytes may follow the line of a request or a reply. The line states their number.

A reply that takes too long is the fault of the request, and the process is killed. Two cases are not the fault of the
request: a process that got no processor time (SIGSTOP, an overloaded machine), and one that something else has killed
(Linux, for lack of memory). They raise TimeoutError, and callers answer that the server is not ready.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from server.system.cores import give_way

_LAUNCHER = Path(__file__).with_name("child.py")
_START_SECONDS = 30.0
_END_SECONDS = 1.0
_LEAST_SHARE = 0.1
"""A process that missed the time limit counts as kept from working if it used less than this share of the limit as
processor time.
"""
_LEAST_SECONDS = 1.0
"""The share is only checked if the time limit has at least this many seconds.

Processor time is counted in steps of 10 ms, which is too coarse for shorter limits.
"""
_INHERITED_VARIABLES = ("PATH", "PYTHONPATH", "PYTHONHOME", "SYSTEMROOT", "TZ", "LANG", "LC_ALL")


class LineProcess:
    """A child process that answers one request at a time. Not safe to use from several threads, except `kill`.

    It starts with the first request, and is replaced after it was killed.

    file: Python script that the child runs. It prints an empty line when it is ready. arguments: its arguments.
    gives_way: whether the child has a lower scheduling priority than this process.
    """

    def __init__(self, file: Path, arguments: Sequence[str] = (), gives_way: bool = False) -> None:
        self._file, self._arguments, self._gives_way = file, arguments, gives_way
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._is_ended = False

    @property
    def pid(self) -> int:
        """Process id of the child, which must have been started."""
        assert self._process is not None
        return self._process.pid

    def exchange(self, line: bytes, seconds: float) -> bytes:
        """Send a line and return the reply. If there is no reply in time, the process is killed, and b"" returned.

        line: the request, with a line break at its end. seconds: time limit.
        Raises TimeoutError if the process does not start, after `kill`, and for a fault that is not the request's.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        return self._exchange(line, seconds)[0]

    def exchange_bytes(self, request: bytes, seconds: float, size_of: Callable[[bytes], int]) -> tuple[bytes, bytes]:
        """Send a line with bytes after it. Returns the line of the reply, and the bytes after that line.

        request: the line and the bytes. seconds: time limit.
        size_of: returns the number of bytes that follow a reply, from its line.
        If the whole reply does not come in time, the process is killed, and two empty values are returned.
        Raises TimeoutError if the process does not start, after `kill`, and for a fault that is not the request's.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        return self._exchange(request, seconds, size_of)

    def kill(self) -> None:
        """Kill the process for good: it is not started again. May be called from another thread during `exchange`."""
        with self._starting:
            self._is_ended = True
            process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """Stop the process if it is running. The next request starts it again, unless `kill` was called."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> None:
        self.stop()
        with self._starting:
            if self._is_ended:
                raise TimeoutError("was stopped")
            # -P and a path instead of -m: the working directory must not shadow modules.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_LAUNCHER), str(self._file), *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ},
            )
        if self._gives_way:
            give_way(self._process.pid)
        if not self._exchange(b"", _START_SECONDS)[0]:
            raise TimeoutError(f"did not start within {_START_SECONDS:g} s")

    def _exchange(
        self, request: bytes, seconds: float, size_of: Callable[[bytes], int] = lambda _: 0
    ) -> tuple[bytes, bytes]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        worked_before = _processor_seconds(process.pid)
        was_idle, was_late = threading.Event(), threading.Event()

        def end() -> None:
            was_late.set()
            worked = _processor_seconds(process.pid) - worked_before
            if seconds >= _LEAST_SECONDS and worked < _LEAST_SHARE * seconds:
                was_idle.set()
            process.kill()

        alarm = threading.Timer(seconds, end)
        alarm.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            reply = process.stdout.readline()
            size = size_of(reply) if reply.endswith(b"\n") else 0
            content = process.stdout.read(size) if size else b""
        except OSError:
            reply, size, content = b"", 0, b""
        finally:
            alarm.cancel()
        if not reply.endswith(b"\n") or len(content) < size:
            was_killed = _ended_by_kill(process) and not was_late.is_set()
            self.stop()
            if was_killed:
                raise TimeoutError("was killed, and was replaced")
            if was_idle.is_set():
                raise TimeoutError(f"did not work for {seconds:.3g} s, and was replaced")
            return b"", b""
        return reply, content


def _ended_by_kill(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process that has closed its output was ended by SIGKILL."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_END_SECONDS) == -getattr(signal, "SIGKILL", 0)
    return False


def _processor_seconds(pid: int) -> float:
    """Processor time in seconds that a process has used. Infinite if the system does not tell it."""
    try:
        # The name of the program, in parentheses, may contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
