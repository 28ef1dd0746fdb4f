"""Read the memory, the processor time and the child processes of a process from the Linux kernel."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Resident memory of a process in bytes, including shared libraries and mapped files."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int | None = None) -> int:
    """Largest resident memory that a process has had since it started its program, in bytes. None: this process.

    `getrusage` is no substitute: its value also covers the process from which the program was started.
    """
    status = Path(f"/proc/{'self' if pid is None else pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and its threads so far, in seconds.

    It is read from the process's clock, in nanoseconds, because /proc counts only hundredths of a second. Raises
    OSError if the process does not exist.
    """
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise OSError(error, os.strerror(error))
    return time.clock_gettime(clock.value)


def children(pid: int) -> list[int]:
    """Ids of the running child processes of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found
