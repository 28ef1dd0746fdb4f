"""A limit of the processor time and the memory that a checkpoint may take before the first of its weights is read.

Until then only names, shapes and settings are read, of which small files can describe any number. The loaders compare
them with each other and with the files; this limit holds for whatever they do not foresee, such as regular expressions
of a checkpoint that backtrack.
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
"""Processor time for a checkpoint of a few megabytes."""
SECONDS_PER_GIB = 1.0
MAX_SECONDS = 300.0
"""More for a larger one: its names are more, too. 92,000 tensors in 640 GiB take 20 s on a slow processor."""
REPEAT_SECONDS = 0.5
MEMORY_BYTES = 1 << 30
MAPPINGS = 8
"""How often the files may be mapped. The passes over names and shapes map them three times, and private mappings count
as memory of the process, though they use none."""

Progress = Callable[[int, int], None]


class PlanningTooLong(BaseException):
    """The limit of time was exceeded. Not an Exception, so that no handler of damaged files takes it for one."""


@contextmanager
def planning_limit(sources: Sequence[Path], progress: Progress, limits_memory: bool) -> Iterator[Progress]:
    """Context manager that limits the time, and the memory, of the planning at the beginning of a load.

    It yields a callback for progress, to be used in place of `progress`. The limits end at its first call.

    sources: directories and files from which the model is loaded. progress: called by the callback.
    limits_memory: whether added memory is limited too. False for devices whose drivers reserve more than they use.
    Raises PlanningTooLong in the block, and MemoryError or RuntimeError where memory runs out. Threads other than the
    main one have no limit.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        yield progress
        return
    file_bytes, disk_bytes = (sum(sizes) for sizes in zip(*map(_bytes_of, sources), strict=True))
    earlier = signal.signal(signal.SIGPROF, _raise)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    is_over = False

    def end() -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

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
        end()
        signal.signal(signal.SIGPROF, earlier)


def _raise(number: int, frame: object) -> None:
    raise PlanningTooLong


def _bytes_of(source: Path) -> tuple[int, int]:
    """Bytes of the files of a checkpoint, and those of them that are on the disk.

    Holes of sparse files are not on the disk, nor is anything that /proc states.
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
    """Private memory of this process that counts for the limit."""
    lines = (line.split() for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return next(int(fields[1]) * 1024 for fields in lines if fields[0] == "VmData:")
