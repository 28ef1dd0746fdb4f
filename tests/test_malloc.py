"""The threads of the HTTP process share two heaps, tested in processes of their own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

THREADS = 4
SCRIPT = f"""
import ctypes, sys, threading
from server.system.malloc import share_heaps

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
if "shared" in sys.argv:
    share_heaps()
heaps, all_run = set(), threading.Barrier({THREADS})

def allocate():
    all_run.wait()
    heaps.add(library.malloc(4096) >> 26)  # the heap of a thread begins at a multiple of 64 MiB
    all_run.wait()

threads = [threading.Thread(target=allocate) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(heaps))
"""


def number_of_heaps(*arguments: str) -> int:
    command = [sys.executable, "-c", SCRIPT, *arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the option numbers are those of glibc")
def test_threads_share_two_heaps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    assert number_of_heaps() == THREADS
    assert number_of_heaps("shared") <= 2
    monkeypatch.setenv("MALLOC_ARENA_MAX", "16")  # the operator's choice
    assert number_of_heaps("shared") == THREADS
