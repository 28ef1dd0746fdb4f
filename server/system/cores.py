"""Processor cores: how many this process may use, how workers divide them, and priority for engine steps."""

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
_KINDS = Path("/sys/devices")
_FAST_SHARE = 0.8
"""A core with at least this part of the capacity of the fastest one is a fast core."""
_NICENESS, _MAX_NICENESS = 10, 19
"""Increase of the niceness of less important tasks, and the highest niceness.

At niceness 10, a task that shares a core with an engine step gets a tenth of the core's time.
"""


@dataclass(frozen=True)
class CoreShare:
    """The processor cores that one worker uses.

    processors: numbers of the logical processors to which the worker is pinned; empty for no pinning.
    threads: number of torch threads; 0 for as many as there are usable cores.
    """

    processors: tuple[int, ...]
    threads: int


def usable_cores(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Number of cores that this process may use, at least 1: the smaller of its CPU affinity and its CPU quotas.

    root: directory in which the system describes control groups. membership: file that names the control groups of this
        process.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min(filter(None, map(_quota, groups("cpu", root, membership))), default=None)
    return allowed if quota is None else max(1, min(allowed, round(quota)))


def give_way(task: int) -> None:
    """Lower the scheduling priority of a process, or on Linux of a thread, so that engine steps come first.

    task: id of the process or thread. Nothing happens if the system does not allow the change.
    """
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            niceness = min(os.getpriority(os.PRIO_PROCESS, task) + _NICENESS, _MAX_NICENESS)
            os.setpriority(os.PRIO_PROCESS, task, niceness)


@contextlib.contextmanager
def steps_uninterrupted() -> Iterator[None]:
    """Context manager in which this thread does not interrupt the threads of engine steps. Linux only.

    Usually a thread that wakes up interrupts the thread that runs on its core; the other threads of a step then wait
    for the interrupted one. In this context (scheduling policy SCHED_BATCH), the thread waits until a core is free, or
    until a time slice of a few milliseconds ends. Nothing changes if the process has another policy than the default.
    """
    changed = _change_policy("SCHED_OTHER", "SCHED_BATCH")
    try:
        yield
    finally:
        if changed:
            _change_policy("SCHED_BATCH", "SCHED_OTHER")


def run_when_idle() -> None:
    """Let this thread, and the threads that it starts, run only on cores that no other thread needs. Linux only.

    A thread with the default policy takes the core as soon as it wakes up. A low priority alone (niceness) is not
    enough: the scheduler lets such a thread run to the end of its time slice, 3 ms and more, while the other threads of
    a step wait. For a thread that ends with its work, because a process may not be allowed to change the policy back.
    """
    _change_policy("SCHED_OTHER", "SCHED_IDLE")


def interrupt_others() -> None:
    """Return to the default scheduling policy, in a process that was started inside `steps_uninterrupted`."""
    _change_policy("SCHED_BATCH", "SCHED_OTHER")


def _change_policy(before: str, after: str) -> bool:
    """Change the scheduling policy of this thread from `before` to `after`. Returns whether it was changed.

    False if the thread has another policy, or if the system does not allow the change.
    """
    if not hasattr(os, after):
        return False
    try:
        if os.sched_getscheduler(0) != getattr(os, before):
            return False
        os.sched_setscheduler(0, getattr(os, after), os.sched_param(0))
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Cores:
    """The processor cores that this process may use.

    all: logical processors of each core, in the order of packages and cores.
    fast: the cores on which steps are computed. On a hybrid processor these are the fast ones: the threads of a step
        divide its work equally, so a slow core would delay all others.
    quota: processors that the groups of the process may use at a time; None without a quota.
    """

    all: tuple[tuple[int, ...], ...]
    fast: tuple[tuple[int, ...], ...]
    quota: float | None

    @property
    def processors(self) -> int:
        """Number of logical processors."""
        return sum(map(len, self.all))

    @property
    def threads(self) -> int:
        """Threads of a step that uses all cores: one for each fast core, within the quota.

        A second hardware thread shares the arithmetic units and the caches of its core, so it does not speed up matrix
        products.
        """
        return max(1, len(self.fast) if self.quota is None else min(len(self.fast), round(self.quota)))


def cores_of_this_process(
    root: Path = ROOT, membership: Path = MEMBERSHIP, processors: Path = _PROCESSORS, kinds: Path = _KINDS
) -> Cores:
    """Find the processor cores that this process may use: its CPU affinity, the fast cores in it, and its CPU quota.

    root, membership: arguments of `cgroups.groups`.
    processors: directory of Linux that describes each logical processor.
    kinds: directory of Linux that lists the fast cores of a hybrid processor.
    """
    processors_of = getattr(os, "sched_getaffinity", lambda pid: range(os.cpu_count() or 1))
    allowed = sorted(processors_of(0))
    quota = min(filter(None, map(_quota, groups("cpu", root, membership))), default=None)
    fast = _fast_processors(allowed, processors, kinds)
    return Cores(tuple(_by_core(allowed, processors)), tuple(_by_core(fast, processors)), quota)


def divide_cores(
    workers: int,
    threads: int = 0,
    cgroup: Path = ROOT,
    processors: Path = _PROCESSORS,
    kinds: Path = _KINDS,
) -> list[CoreShare]:
    """Divide the processor cores among the CPU workers. Returns one entry for each worker.

    Each worker gets processors of its own. The hardware threads of a core stay together, and so do the cores of a
    package, as far as possible. No worker is pinned if there is only one worker, or if a worker would have fewer
    processors than threads; the system then places the threads. Slow cores of a hybrid processor are left out if
    there is a fast core for each worker.

    workers: number of workers.
    threads: threads of each worker; 0 for the usable cores divided by the workers, at least 1.
    cgroup, processors, kinds: the arguments `root`, `processors` and `kinds` of `cores_of_this_process`.
    """
    if workers == 1:
        return [CoreShare((), threads)]
    found = cores_of_this_process(cgroup, processors=processors, kinds=kinds)
    each = threads or max(1, found.threads // workers)
    if not hasattr(os, "sched_getaffinity"):
        return [CoreShare((), each)] * workers
    cores = found.fast if len(found.fast) >= workers else found.all
    units = cores if len(cores) >= workers else [(number,) for core in cores for number in core]
    ends = [len(units) * index // workers for index in range(workers + 1)]
    shares = [tuple(number for unit in units[first:end] for number in unit) for first, end in pairwise(ends)]
    if min(map(len, shares)) < each:
        return [CoreShare((), each)] * workers
    return [CoreShare(share, each) for share in shares]


def _fast_processors(allowed: list[int], processors: Path, kinds: Path) -> list[int]:
    """The allowed processors whose cores are about as fast as the fastest allowed one; all if Linux does not say.

    On Intel, Linux lists the fast cores of a hybrid processor as a kind of its own. Elsewhere, as on Arm, it states the
    capacity of each processor.
    """
    try:
        listed = _numbers((kinds / "cpu_core" / "cpus").read_text())
        fast = [number for number in allowed if number in listed]
        return fast or allowed
    except (OSError, ValueError):
        pass
    try:
        capacities = {number: int((processors / f"cpu{number}" / "cpu_capacity").read_text()) for number in allowed}
    except (OSError, ValueError):
        return allowed
    least = _FAST_SHARE * max(capacities.values(), default=0)
    return [number for number in allowed if capacities[number] >= least]


def _numbers(text: str) -> frozenset[int]:
    """Numbers of a list as Linux writes it, such as `0-3,8`. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _by_core(allowed: list[int], root: Path) -> list[tuple[int, ...]]:
    """Group logical processors by core, in the order of packages and cores.

    allowed: numbers of the processors. root: directory in which Linux describes them. A processor that is not described
    counts as a core.
    """
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
    """Number of processors that a control group may use at a time; None without a quota. group: its directory."""
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
