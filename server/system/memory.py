"""The memory that this process may use, from the machine, its control groups and its resource limits."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from server.system.cgroups import MEMBERSHIP, ROOT, groups

_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"),
)
"""Files of cgroup v2 and v1: limit, usage, statistics, and the name of the reclaimable file cache in the statistics."""


def usable_memory_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Bytes of memory that this process may use: the machine's memory, or a smaller limit of its control groups.

    root: directory in which the system describes control groups. membership: file that names the control groups of this
        process.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for limit, _ in _limits(root, membership))])


def free_memory_bytes(root: Path = ROOT, meminfo: Path = Path("/proc/meminfo"), membership: Path = MEMBERSHIP) -> int:
    """Bytes of memory that new allocations can take, on the machine and within the limits of the control groups.

    File cache that the system can drop counts as free. If the system does not tell what is free, all usable memory
    counts as free.

    root: directory in which the system describes control groups. membership: file that names the control groups of this
        process.
    meminfo: file with the memory of the machine.
    """
    free = usable_memory_bytes(root, membership)
    available = _field(meminfo, "MemAvailable:")
    if available is not None:
        free = min(free, available << 10)
    return max(min([free, *(left for _, left in _limits(root, membership) if left is not None)]), 0)


def _limits(root: Path, membership: Path) -> Iterator[tuple[int, int | None]]:
    """Yield (limit, free memory below the limit), in bytes, for each control group with a memory limit.

    The free memory is None if the system does not tell the usage.
    """
    for group in groups("memory", root, membership):
        for limit, usage, statistics, cache in _CGROUP_FILES:
            try:
                most = int((group / limit).read_text())
            except (OSError, ValueError):
                continue
            try:
                left = most - int((group / usage).read_text()) + (_field(group / statistics, cache) or 0)
            except (OSError, ValueError):
                yield most, None
            else:
                yield most, left


def unused_limit_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """Bytes that this process may still allocate by its resource limits (`ulimit -d` and `-v`); None without limits.

    status: file with the current memory of this process.
    """
    left = []
    for name, kind in (("VmData:", resource.RLIMIT_DATA), ("VmSize:", resource.RLIMIT_AS)):
        limit, used = resource.getrlimit(kind)[0], _field(status, name)
        if limit != resource.RLIM_INFINITY and used is not None:
            left.append(max(limit - (used << 10), 0))
    return min(left, default=None)


def _field(file: Path, name: str) -> int | None:
    """Return the number in the line of a file that begins with a name, in the unit of the file; None if there is none.

    file: a file of the system, for example `/proc/meminfo` with the line `MemAvailable: 1024 kB`.
    name: first word of the line, for example `MemAvailable:`.
    """
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith(f"{name} ") or line.startswith(f"{name}\t"))
    return next((int(parts[1]) for parts in found if len(parts) > 1 and parts[1].isdigit()), None)
