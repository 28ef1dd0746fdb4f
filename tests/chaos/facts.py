"""Read facts about a running server: memory, file descriptors, child processes, metrics."""

from __future__ import annotations

import re
import time

import httpx
import psutil

from tests.waiting import HANG_SECONDS

_LOOK_SECONDS = 0.05
_QUIET_SECONDS = 0.025
"""Largest processor time of an idle server process in `_LOOK_SECONDS`. The monitor of its event loop needs some."""


def memory_bytes(process: psutil.Process) -> int:
    """Anonymous resident memory of a process in bytes, that is, without mapped files."""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        found = re.search(r"RssAnon:\s+(\d+) kB", file.read())
    assert found is not None
    return int(found[1]) << 10


def descriptors(process: psutil.Process) -> int:
    """Number of open file descriptors."""
    return process.num_fds()


def zombies(process: psutil.Process) -> int:
    """Number of zombies among the children: processes that have ended but whose exit status was not read."""
    return sum(child.status() == psutil.STATUS_ZOMBIE for child in process.children(recursive=True))


def children(process: psutil.Process) -> list[psutil.Process]:
    """All descendants of a process."""
    return process.children(recursive=True)


def metric_page(url: str) -> str:
    return httpx.get(url + "/metrics", timeout=HANG_SECONDS).text


def metric(page: str, name: str, **labels: str) -> float:
    """Sum of the samples of a metric with these labels. Raises AssertionError if the page declares no such metric."""
    assert f"# TYPE {name} " in page, f"no metric {name}"
    total = 0.0
    for line in page.splitlines():
        sample, _, value = line.rpartition(" ")
        if (sample == name or sample.startswith(name + "{")) and all(f'{k}="{v}"' in sample for k, v in labels.items()):
            total += float(value)
    return total


def is_idle(url: str) -> bool:
    """Whether no sequence runs or waits, and no KV block is in use."""
    page = metric_page(url)
    names = ("triptych_requests_running", "triptych_requests_waiting", "triptych_kv_blocks_used")
    return not any(metric(page, name) for name in names)


def wait_until_quiet(process: psutil.Process) -> None:
    """Wait until a process has used no processor time in three successive measurements, at most `HANG_SECONDS`."""
    quiet, used = 0, -1.0
    end = time.monotonic() + HANG_SECONDS
    while quiet < 3 and time.monotonic() < end:
        now = sum(process.cpu_times()[:2])
        quiet = quiet + 1 if now - used < _QUIET_SECONDS else 0
        used = now
        time.sleep(_LOOK_SECONDS)
