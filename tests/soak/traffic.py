"""Requests of several clients in Zipf order, their answers, and the memory of the processes that answer."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.soak.checkpoints import BROKEN, RECORDING, Kind

BROKEN_EVERY = 40
"""One of so many requests is for the broken checkpoint."""
NO_ANSWER = 0
"""Status of a request whose connection was closed without an answer."""


class ZipfOrder:
    """The model that each request is for: requests for a model are inversely proportional to its rank.

    names: the models. Their ranks are random, but the same for the same names.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.ranked = list(names)
        random.Random(0).shuffle(self.ranked)
        self._weights = list(itertools.accumulate(1 / rank for rank in range(1, len(self.ranked) + 1)))

    def name(self, number: int) -> str:
        """The model of the request with this number: `BROKEN` for every `BROKEN_EVERY`th one."""
        if number % BROKEN_EVERY == BROKEN_EVERY - 1:
            return BROKEN
        return random.Random(number).choices(self.ranked, cum_weights=self._weights)[0]


def send_all(send: Callable[[int], None], count: int, seconds: float, clients: int) -> None:
    """Call `send` with the numbers 0 to `count - 1`, in the threads of `clients` clients.

    The calls begin evenly spread over `seconds`, or later if all clients wait for their answers.
    """
    began, lock, numbers = time.monotonic(), threading.Lock(), iter(range(count))

    def client() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            time.sleep(max(began + seconds * number / count - time.monotonic(), 0.0))
            send(number)

    with ThreadPoolExecutor(clients) as pool:
        for ended in [pool.submit(client) for _ in range(clients)]:
            ended.result()


def ask(url: str, name: str, kind: Kind) -> tuple[int, Any]:
    """Send one request. Returns its status, and the part of its answer that does not depend on time.

    The second value is the beginning of the body if the status is not 200. A connection that is closed without an
    answer has the status `NO_ANSWER`.
    """
    try:
        if kind.body is None:
            files, fields = {"file": ("a.wav", RECORDING)}, {"model": name, "temperature": "0"}
            response = httpx.post(url + kind.path, files=files, data=fields, timeout=300)
        else:
            response = httpx.post(url + kind.path, json=dict(kind.body) | {"model": name}, timeout=300)
    except httpx.TransportError as error:
        return NO_ANSWER, repr(error)
    return response.status_code, kind.answer(response.json()) if response.status_code == 200 else response.text[:300]


def is_equal(one: Any, other: Any, tolerance: float = 1e-3) -> bool:
    """Whether two answers are equal. The order of sums differs in batches of other sizes, so numbers may differ a bit.

    tolerance: the difference that two numbers must not reach.
    """
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < tolerance
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(is_equal(*pair, tolerance) for pair in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key], tolerance) for key in one)
    return bool(one == other)


def tree_bytes(pid: int, field: str = "Pss") -> int:
    """Proportional memory of a process and its descendants: a page of several processes counts in parts.

    field: line of `/proc/PID/smaps_rollup`, `Pss_File` for the pages of mapped files only.
    """
    total, root = 0, psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        # A process that ends has no such file, or an empty one.
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            total += int(next(line.split()[1] for line in lines if line.startswith(f"{field}:"))) << 10
    return total


def bytes_above(pid: int, before_bytes: int, seconds: float) -> tuple[int, float]:
    """Wait until the tree of a process has no more memory than `before_bytes`, at most `seconds`.

    Returns the bytes that are left above it, and the seconds of the wait.
    """
    began = time.monotonic()
    while (left := tree_bytes(pid) - before_bytes) > 0 and time.monotonic() < began + seconds:
        time.sleep(0.1)
    return max(left, 0), time.monotonic() - began
