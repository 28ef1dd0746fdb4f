"""The HTTP process reaches the memory limit of its container, under large requests.

Linux kills a process then. If that is the HTTP process, its workers and helpers end with it, clients see their
connections close, and the next start on the same port and files serves at once.
"""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.waiting import HANG_SECONDS, eventually, is_gone
from tests.wire.conftest import Process

MIB = 1 << 20
SMALL = {"inputs": "ab"}
DOCUMENTED = {"200", "400 context_length_exceeded", "413 body_too_large", "429 overloaded", "503 not_ready"}
CUT = "cut"
"""Stands for an answer on a connection that was cut off."""
_GROUPS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"),
)
"""Control groups of version 1 and 2: directory, and files of the limits with and without swap."""


class MemoryGroup:
    """A control group with a memory limit, as a container has it."""

    def __init__(self, directory: Path, limit: str, swap: str) -> None:
        self.directory, self._limit, self._swap = directory, limit, swap

    def limit(self, num_bytes: int) -> None:
        (self.directory / self._limit).write_text(str(num_bytes))
        with contextlib.suppress(OSError):  # a system without swap accounting has no swap either
            (self.directory / self._swap).write_text(str(num_bytes if self._swap.endswith("in_bytes") else 0))

    def add(self, pid: int) -> None:
        (self.directory / "cgroup.procs").write_text(str(pid))


@pytest.fixture
def memory_group() -> Iterator[MemoryGroup]:
    for parent, limit, swap in _GROUPS:
        directory = parent / f"triptych-test-{uuid.uuid4().hex}"
        try:
            directory.mkdir()
        except OSError:
            continue
        try:
            if (directory / limit).exists():
                yield MemoryGroup(directory, limit, swap)
                return
        finally:
            eventually(lambda: not (directory / "cgroup.procs").read_text().split())  # noqa: B023
            directory.rmdir()
    pytest.skip("this system does not let this process create a control group with a memory limit")


def large_body(number: int) -> bytes:
    """A body of nearly 30 MiB: a conversation. Its text is another one for each number."""
    text = (b"%d " % number * (15 * MIB))[: 29 * MIB]
    return b'{"messages": [{"role": "user", "content": "%b"}], "max_tokens": 1}' % text


def flood(server: Process, count: int) -> Counter[str]:
    """Send large bodies at once, until each is answered or cut off. Counts the answers by status and error code."""

    def send(number: int) -> str:
        try:
            headers = {"content-type": "application/json"}
            url = server.url + "/v1/chat/completions"
            answer = httpx.post(url, content=large_body(number), headers=headers, timeout=HANG_SECONDS)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            return CUT
        return f"{answer.status_code} {answer.json().get('error', {}).get('code', '')}".strip()

    with ThreadPoolExecutor(count) as threads:
        return Counter(threads.map(send, range(count)))


def family(server: Process) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


def arguments(tmp_path: Path) -> tuple[str, ...]:
    return ("--glossaries", str(tmp_path / "stored"), "--suggestions", str(tmp_path / "suggestions"))


def test_a_killed_server_leaves_nothing_behind(
    start: Callable[..., Process], tmp_path: Path, memory_group: MemoryGroup
) -> None:
    """Only the HTTP process is in the group, so that Linux has to kill it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    settings = (*arguments(tmp_path), "--port", port)
    server = start(*settings).wait_ready()
    glossary = {"name": "mine", "source_lang": "en", "target_lang": "de", "entries_format": "tsv", "entries": "a\tb"}
    stored = server.post("/v2/glossaries", json=glossary).json()["glossary_id"]
    helpers = family(server)
    assert helpers
    memory_group.add(server.process.pid)
    memory_group.limit(24 * MIB)  # what it has already counts for the group in which it was taken
    seen = flood(server, 8)
    killed = time.monotonic()
    assert set(seen) <= {*DOCUMENTED, CUT} and seen[CUT], seen
    assert server.wait() == -9
    eventually(lambda: all(map(is_gone, helpers)))
    assert time.monotonic() - killed < 10
    # As a service manager does it: the same port and files.
    again = start(*settings).wait_ready()
    assert again.url.endswith(f":{port}")
    assert again.post("/tokenize", json=SMALL).status_code == 200
    assert [found["glossary_id"] for found in again.get("/v2/glossaries").json()["glossaries"]] == [stored]
    files = [file.suffix for file in (tmp_path / "stored").iterdir()]
    assert files == [".json"], "half a file is left"


def test_a_container_that_is_full_answers_again(
    start: Callable[..., Process], tmp_path: Path, memory_group: MemoryGroup
) -> None:
    """Server, worker and helpers are in the group. Linux kills one of them; whatever it is, nothing hangs."""
    server = start(*arguments(tmp_path)).wait_ready()
    assert server.post("/tokenize", json=SMALL).status_code == 200
    helpers = family(server)
    for pid in (server.process.pid, *(process.pid for process in helpers)):
        memory_group.add(pid)
    memory_group.limit(64 * MIB)
    seen: Counter[str] = Counter()
    end = time.monotonic() + 30
    while server.process.poll() is None and time.monotonic() < end and "was killed by" not in server.output:
        seen += flood(server, 8)
    assert set(seen) <= {*DOCUMENTED, "500 engine_error", CUT}, seen
    if server.process.poll() is None:
        memory_group.limit(4 << 30)
        eventually(lambda: server.get("/ready").status_code == 200)
        assert server.post("/tokenize", json=SMALL).status_code == 200
    else:
        assert server.wait() == -9
        eventually(lambda: all(map(is_gone, helpers)))
