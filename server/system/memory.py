"""Memory that this process may use."""

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
"""Files of cgroup v2 and v1: the limit, the usage, and the statistics with the name of the reclaimable file cache."""


def usable_memory_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """The smaller of the machine's memory and the limits of the groups of this process (cgroup v2 and v1).

    root, membership: as for `cgroups.groups`.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for limit, _ in _limits(root, membership))])


def free_memory_bytes(root: Path = ROOT, meminfo: Path = Path("/proc/meminfo"), membership: Path = MEMBERSHIP) -> int:
    """Memory that new allocations can take: of the machine, and below the limits of the groups of this process.

    File cache that the system can drop counts as free. Where the system does not say what is free, all usable memory
    does.
    """
    free = usable_memory_bytes(root, membership)
    available = _field(meminfo, "MemAvailable:")
    if available is not None:
        free = min(free, available << 10)
    return max(min([free, *(left for _, left in _limits(root, membership) if left is not None)]), 0)


def _limits(root: Path, membership: Path) -> Iterator[tuple[int, int | None]]:
    """For each group of this process with a limit: the limit, and what it leaves free, if the usage is stated."""
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
