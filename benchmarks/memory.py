"""What a process holds and has used, as Linux tells it."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in use now, shared libraries and mapped files included."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Processor time that a process and its threads have taken so far, to the nanosecond: /proc counts in hundredths of
    a second. Raises OSError."""
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise OSError(error, os.strerror(error))
    return time.clock_gettime(clock.value)


def children(pid: int) -> list[int]:
    """Processes that were started by this one and still run."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found
