"""Memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_memory_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """The smaller of the machine's memory and the container's limit (cgroup v2, else v1)."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return min(physical, int((root / file).read_text()))
        except (OSError, ValueError):
            continue
    return physical
