"""Settings of malloc, the allocator of C memory. They do nothing without glibc.

Settings of the operator in the environment (MALLOC_ARENA_MAX and so on) take precedence.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Options of `mallopt`, from malloc.h."""
_VARIABLES = {
    _TRIM_THRESHOLD: "MALLOC_TRIM_THRESHOLD_",
    _MMAP_THRESHOLD: "MALLOC_MMAP_THRESHOLD_",
    _ARENA_MAX: "MALLOC_ARENA_MAX",
}
"""Environment variable of each option."""
_MAX_HEAPS = 2
"""Most heaps of a process with many threads. By default, there are up to eight for each processor.

The threads of the HTTP process hold Python's lock most of the time, so that they seldom wait for a heap.
"""
_MAPPED_BYTES, _KEPT_BYTES = 4 << 20, 8 << 20


def share_heaps() -> None:
    """Let all threads of the HTTP process share two heaps, and map large blocks separately.

    Otherwise each thread fills a heap of its own, and keeps what it freed: after expensive requests of many kinds, an
    idle process held 0.8 GB in place of 0.4 GB. Threads that have a heap already keep it.
    """
    _set(_ARENA_MAX, _MAX_HEAPS)
    set_thresholds(_MAPPED_BYTES, _KEPT_BYTES)


def set_thresholds(mapped: int, kept: int) -> None:
    """Set from which size blocks are mapped separately, and return free memory to the system.

    mapped: blocks of this many bytes and more are mapped separately, smaller ones come from a heap.
    kept: free bytes that stay at the end of a heap.
    Free memory is returned because glibc takes even a large block from a heap if it fits.
    """
    _set(_MMAP_THRESHOLD, mapped)
    _set(_TRIM_THRESHOLD, kept)
    _trim()


def give_back_memory() -> None:
    """Collect garbage and return freed memory of this process to the system."""
    gc.collect()
    _trim()


def _trim() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _set(option: int, value: int) -> None:
    if sys.platform == "linux" and not {_VARIABLES[option], "GLIBC_TUNABLES"} & os.environ.keys():
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(option, value)
