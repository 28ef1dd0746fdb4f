"""Memory and processor settings that the worker makes for its process, tested in separate processes."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from server.system.child import end_before_the_server

SCRIPT = """
import ctypes
from server.engine.process.host import map_large_blocks, reuse_large_blocks

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]

def in_heap(megabytes):
    place = library.malloc(int(megabytes * 2**20))
    with open("/proc/self/maps") as lines:
        heap = next(line.split()[0] for line in lines if "[heap]" in line)
    first, end = (int(number, 16) for number in heap.split("-"))
    return first <= place < end

map_large_blocks()
print(in_heap(0.5), in_heap(1.5))
reuse_large_blocks()
print(in_heap(1.5), in_heap(3.5), in_heap(4.5))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the option numbers are those of glibc")
def test_large_allocations_are_mapped_or_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    output = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    assert output.split("\n")[:2] == ["True False", "True True False"]


@pytest.mark.parametrize(("before", "after"), [("0", "300"), ("-900", "-600"), ("900", "1000")])
def test_the_kernel_kills_a_worker_before_the_server(tmp_path: Path, before: str, after: str) -> None:
    """The worker raises its `oom_score_adj`, so that the kernel kills it rather than the server.

    Every process may raise its own value. Without this file, as on other systems, nothing happens.
    """
    file = tmp_path / "oom_score_adj"
    file.write_text(before)
    end_before_the_server(file)
    assert file.read_text() == after
    end_before_the_server(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


PINNING = """
import os, threading
from server.engine.process.host import pin_to_processors, use_all_processors

before = os.sched_getaffinity(0)
pin_to_processors({max(before)})
print(os.sched_getaffinity(0) == {max(before)})
begin, end, places = threading.Event(), threading.Event(), []

def note():
    places.append(os.sched_getaffinity(threading.get_native_id()))
    begin.set()
    end.wait()
    places.append(os.sched_getaffinity(threading.get_native_id()))

thread = threading.Thread(target=note)
thread.start()
begin.wait()
use_all_processors()
end.set()
thread.join()
print(places == [{max(before)}, before], os.sched_getaffinity(0) == before)
pin_to_processors({100_000})
print(os.sched_getaffinity(0) == before)
"""


def test_pinned_processes_and_their_threads() -> None:
    output = subprocess.run([sys.executable, "-c", PINNING], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["True"] * 4
