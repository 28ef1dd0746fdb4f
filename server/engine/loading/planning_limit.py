"""Limits the processor time and the memory that a checkpoint may take before its first weight is read (planning).

Until then only names, shapes and settings are read. Small files can describe very many of them. The loaders check them
against each other and against the files. This limit is for cases that the loaders do not foresee, such as a regular
expression in a checkpoint that backtracks.
"""

from __future__ import annotations

import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SECONDS = 3.0
"""Limit of the processor time in seconds for a checkpoint of a few megabytes."""
SECONDS_PER_GIB = 1.0
"""Added to the limit of the processor time for each GiB of the checkpoint on the disk. Larger checkpoints have more
names: 92,000 tensors in 640 GiB take 20 s on a slow processor."""
MAX_SECONDS = 300.0
"""Largest limit of the processor time."""
REPEAT_SECONDS = 0.5
"""Processor time after which PlanningTooLong is raised again, in case a library has caught it."""
MEMORY_BYTES = 1 << 30
"""Memory that planning may add, besides the mappings of the files."""
MAPPINGS = 8
"""The memory limit allows for this many mappings of all files. Planning maps the files three times.

The system counts private mappings as memory of the process, although they take no memory.
"""

Progress = Callable[[int, int], None]


class PlanningTooLong(BaseException):
    """Planning exceeded its time limit. It is no `Exception`, so that handlers for damaged files do not catch it."""


@contextmanager
def planning_limit(sources: Sequence[Path], progress: Progress, limits_memory: bool) -> Iterator[Progress]:
    """Context manager that limits the time, and the memory, of the planning at the beginning of a load.

    It yields a progress callback, which the load must call instead of `progress`. The first call ends the limits.

    sources: directories and files from which the model is loaded. progress: called by the yielded callback.
    limits_memory: whether added memory is limited too. False for devices whose drivers reserve more than they use.
    Beyond the time limit, PlanningTooLong is raised inside the block. Beyond the memory limit, allocations raise
    MemoryError or RuntimeError. There are no limits on systems other than Linux, and outside the main thread.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        yield progress
        return
    file_bytes, disk_bytes = (sum(sizes) for sizes in zip(*map(_bytes_of, sources), strict=True))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    is_over = False

    def stop(number: int, frame: object) -> None:
        # An exception in `end` would leave a limit in force.
        if not is_over:
            raise PlanningTooLong

    def end() -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    earlier = signal.signal(signal.SIGPROF, stop)

    def report(done_bytes: int, total_bytes: int) -> None:
        end()
        progress(done_bytes, total_bytes)

    if limits_memory:
        limit = _data_bytes() + MEMORY_BYTES + MAPPINGS * file_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    signal.setitimer(signal.ITIMER_PROF, _seconds(disk_bytes), REPEAT_SECONDS)
    try:
        yield report
    finally:
        try:
            end()
        finally:
            end()  # if `stop` has raised before `end` began
            signal.signal(signal.SIGPROF, earlier)


def _bytes_of(source: Path) -> tuple[int, int]:
    """Total size of the files of a checkpoint, and how many of these bytes are on the disk.

    Holes of sparse files are not on the disk, and neither are files of /proc.
    """
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    found = [path.stat() for path in files]
    return (
        sum(status.st_size for status in found),
        sum(min(status.st_size, max(status.st_blocks, 1) * 512) for status in found),
    )


def _seconds(file_bytes: int) -> float:
    return min(SECONDS + SECONDS_PER_GIB * file_bytes / 2**30, MAX_SECONDS)


def _data_bytes() -> int:
    """Bytes of private memory of this process that the memory limit counts (VmData)."""
    lines = (line.split() for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return next(int(fields[1]) * 1024 for fields in lines if fields[0] == "VmData:")
