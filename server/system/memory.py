"""Memory that this process may use."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
"""Files of cgroup v2 and v1: the limit, the usage, and the statistics with the name of the reclaimable file cache."""


def usable_memory_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """The smaller of the machine's memory and the container's limit (cgroup v2, else v1)."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file, *_ in _CGROUP_FILES:
        try:
            return min(physical, int((root / file).read_text()))
        except (OSError, ValueError):
            continue
    return physical


def free_memory_bytes(root: Path = Path("/sys/fs/cgroup"), meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that new allocations can take: of the machine, and below the container's limit.

    File cache that the system can drop counts as free. Where the system does not say what is free, all usable memory
    does.
    """
    free = usable_memory_bytes(root)
    available = _field(meminfo, "MemAvailable:")
    if available is not None:
        free = min(free, available << 10)
    for limit, usage, statistics, cache in _CGROUP_FILES:
        try:
            left = int((root / limit).read_text()) - int((root / usage).read_text())
        except (OSError, ValueError):
            continue
        return max(min(free, left + (_field(root / statistics, cache) or 0)), 0)
    return free


def unused_limit_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """Memory that the limits of this process leave it (`ulimit -d` and `-v`); None without such limits."""
    left = []
    for name, kind in (("VmData:", resource.RLIMIT_DATA), ("VmSize:", resource.RLIMIT_AS)):
        limit, used = resource.getrlimit(kind)[0], _field(status, name)
        if limit != resource.RLIM_INFINITY and used is not None:
            left.append(max(limit - (used << 10), 0))
    return min(left, default=None)


def _field(file: Path, name: str) -> int | None:
    """The integer in the line that begins with a name, in the unit of the file; None if there is no such line.

    file: a file of the system, for example `/proc/meminfo` with the line `MemAvailable: 1024 kB`.
    name: first word of the line, for example `MemAvailable:`.
    """
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith(f"{name} ") or line.startswith(f"{name}\t"))
    return next((int(parts[1]) for parts in found if len(parts) > 1 and parts[1].isdigit()), None)
