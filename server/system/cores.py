"""Processor cores: how many this process may use, how workers divide them, and which tasks let the steps go first."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from server.system.cgroups import MEMBERSHIP, ROOT, groups

_PROCESSORS = Path("/sys/devices/system/cpu")
_NICENESS, _MAX_NICENESS = 10, 19
"""At niceness 10, a task that shares a core with a step gets a tenth of it. A task alone on a core gets all of it."""


@dataclass(frozen=True)
class CoreShare:
    """The part of the processor cores that one of several workers computes on.

    processors: logical processors to which the worker is pinned; empty for all that the server may use.
    threads: number of torch threads; 0 means as many as usable cores.
    """

    processors: tuple[int, ...]
    threads: int


def usable_cores(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Number of usable cores: the smaller of CPU affinity and the CPU quotas of the groups of this process.

    root, membership: as for `cgroups.groups`.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min(filter(None, map(_quota, groups("cpu", root, membership))), default=None)
    return allowed if quota is None else max(1, min(allowed, round(quota)))


def give_way(task: int) -> None:
    """Lower the scheduling priority of a process, or on Linux of a thread, so that engine steps come first.

    task: id of the process or thread. Its priority is not changed where the system does not allow it.
    """
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            niceness = min(os.getpriority(os.PRIO_PROCESS, task) + _NICENESS, _MAX_NICENESS)
            os.setpriority(os.PRIO_PROCESS, task, niceness)


@contextlib.contextmanager
def steps_uninterrupted() -> Iterator[None]:
    """Context manager: in its block, this thread wakes up without interrupting a thread that computes. Linux only.

    The threads that compute are those of an engine step. This thread waits until one of them sleeps, or has used up its
    time slice of a few milliseconds. Usually a thread that wakes up interrupts the one that runs; the other threads of
    the step then wait for that one. Where the operator has chosen another scheduling policy for the process, nothing
    changes.
    """
    changed = _change_policy("SCHED_OTHER", "SCHED_BATCH")
    try:
        yield
    finally:
        if changed:
            _change_policy("SCHED_BATCH", "SCHED_OTHER")


def interrupt_others() -> None:
    """Undo `steps_uninterrupted` in a process that was started inside of that context and has inherited its policy."""
    _change_policy("SCHED_BATCH", "SCHED_OTHER")


def _change_policy(before: str, after: str) -> bool:
    """Change the scheduling policy of this thread, if it is `before`. False where the system does not allow it."""
    if not hasattr(os, after):
        return False
    try:
        if os.sched_getscheduler(0) != getattr(os, before):
            return False
        os.sched_setscheduler(0, getattr(os, after), os.sched_param(0))
    except OSError:
        return False
    return True


def divide_cores(
    workers: int, threads: int = 0, cgroup: Path = ROOT, processors: Path = _PROCESSORS
) -> list[CoreShare]:
    """The share of each CPU worker: disjoint sets of processors, and the number of threads.

    workers: number of workers. A single worker is not pinned.
    threads: threads of each worker, as the operator chose them; 0 for usable cores divided by workers, at least 1.
    cgroup, processors: directories in which Linux describes quota and processors.

    The hardware threads of a core stay together, and so do the cores of a package, as far as the numbers allow. The
    workers are not pinned if there are fewer processors than workers, or if a share has fewer processors than
    `threads`: the system then places their threads.
    """
    if workers == 1:
        return [CoreShare((), threads)]
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    each = threads or max(1, usable_cores(cgroup) // workers)
    cores = _by_core(allowed, processors)
    units = cores if len(cores) >= workers else [(number,) for core in cores for number in core]
    ends = [len(units) * index // workers for index in range(workers + 1)]
    shares = [tuple(number for unit in units[first:end] for number in unit) for first, end in pairwise(ends)]
    if min(map(len, shares)) < each:
        return [CoreShare((), each)] * workers
    return [CoreShare(share, each) for share in shares]


def _by_core(allowed: list[int], root: Path) -> list[tuple[int, ...]]:
    """Group logical processors by core, in the order of packages and cores."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number in allowed:
        topology = root / f"cpu{number}" / "topology"
        try:
            package = int((topology / "physical_package_id").read_text())
            siblings = (topology / "thread_siblings_list").read_text()
            key = (package, int(re.split("[,-]", siblings)[0]))
        except (OSError, ValueError):
            key = (0, number)
        groups.setdefault(key, []).append(number)
    return [tuple(groups[key]) for key in sorted(groups)]


def _quota(group: Path) -> float | None:
    """The processors that a group may use at a time; None without a quota (cgroup v2, else v1)."""
    try:
        limit, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        return int(limit) / int(period) if int(limit) > 0 and int(period) > 0 else None
    except ValueError:
        return None
