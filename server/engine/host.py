"""What the worker asks of its system: how many cores are ours, to die with the parent, to wait idly, to take memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

SPIN_COUNT = "20000"
_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_LOADING_BYTES, _SERVING_BYTES = 1 << 20, 4 << 20
"""Blocks of so much and more do not come from the heap."""

_KEPT_BYTES = 8 << 20
"""What the heap keeps of what is freed at its end while steps run."""


def die_with_parent() -> None:
    """Have Linux kill this process when its parent ends, however it ends. Elsewhere the closed socket has to do."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def leave_signals_to_parent() -> None:
    """Ctrl-C and a service manager's SIGTERM reach the whole process group; the parent drains, then tells us."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def let_threads_sleep() -> None:
    """Have idle OpenMP threads sleep soon instead of spinning for milliseconds. To be called before torch is imported.

    The worker shares its cores with the HTTP process, and where a thread of a parallel region is not running, the
    spinning of the others keeps it from running: measured on two busy cores, a step took ten times as long. The
    operator's own choice, in the environment, stands.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT


def map_large_blocks() -> None:
    """Have glibc map every block of a megabyte by itself: for loading, so that what it frees leaves no holes.

    Steps would put their largest blocks now into one hole and now into another, until all are in use.
    """
    _keep(_LOADING_BYTES, _LOADING_BYTES)


def reuse_large_blocks() -> None:
    """Loading is done: give what it has freed back, and from now on keep what a step frees for the next one.

    Pages that are given back and taken anew at every step cost more than what is done with them, unless the blocks are
    large: then the step takes so long that the pages do not show, while in the heap something small would sit down in
    each hole they leave, and the heap grow by as many of them. What is larger still and always needed, logits and the
    scratch memory of programs, has a place of its own.
    """
    _keep(_SERVING_BYTES, _KEPT_BYTES)


def _keep(below: int, kept: int) -> None:
    """below: in bytes, the blocks that come from the heap. kept: how much of what is freed at its end stays there.

    What was freed so far is given back, since glibc takes even a large block from the heap where there is room for it.
    """
    _set_malloc(_M_MMAP_THRESHOLD, below)
    _set_malloc(_M_TRIM_THRESHOLD, kept)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _set_malloc(option: int, size: int) -> None:
    """Only of glibc are these the numbers; the operator's own choice, in the environment, stands."""
    chosen = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys()
    if sys.platform == "linux" and not chosen:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(option, size)


def usable_cores(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that we may really use: the least of affinity and the container's CPU quota (cgroup v2, else v1)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(root)
    return allowed if quota is None else max(1, min(allowed, round(quota)))


def _quota(root: Path) -> float | None:
    try:
        limit, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        return int(limit) / int(period) if int(limit) > 0 and int(period) > 0 else None
    except ValueError:
        return None
