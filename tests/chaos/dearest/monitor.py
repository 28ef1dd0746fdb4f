"""Start `triptych` with a monitor of its event loop: `python -m tests.chaos.dearest.monitor FILE serve ...`.

A timer runs in the loop every few milliseconds. A gap between two runs that is longer than the timer's period is a
stall. If the file `FILE.stacks` exists, a thread appends the stack traces of all threads during long stalls to it.

Other processes on the machine can also cause a gap. Therefore two lengths are reported. `seconds` is by the clock.
`own_seconds` leaves out the time in which the loop's thread waited for a processor. It is limited to the processor time
that all threads of the process used in the gap, because other threads stop the loop while they hold Python's lock.
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

PERIOD_SECONDS = 0.002
SAMPLED_SECONDS = 0.02
"""Shortest stall during which stack traces are written."""
LAYOUT = struct.Struct("<ddd")
"""Content of the shared file: index of the measurement, longest `seconds` and longest `own_seconds` in it."""


class LoopMonitor:
    """Writes the longest stalls of the running event loop to a file that other processes map. path: the file."""

    def __init__(self, path: Path) -> None:
        self._map = _mapped(path)
        self._loop = asyncio.get_running_loop()
        self._schedstat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._last = self._now()
        self._stacks = StackLog(stacks, lambda: self._last[0]) if (stacks := stacks_of(path)).exists() else None
        self._beat()

    def _now(self) -> tuple[float, float, float]:
        """The clock, the processor time of the process, and the waiting time of the loop's thread, in seconds.

        The waiting time is the time in which the thread could run but had no processor.
        """
        # There is only one system call, because another thread may take Python's lock during each call.
        delay = int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9
        return time.monotonic(), time.process_time(), delay

    def _beat(self) -> None:
        now = self._now()
        seconds, used, delayed = (a - b for a, b in zip(now, self._last, strict=True))
        stall = max(0.0, seconds - PERIOD_SECONDS)
        own = max(0.0, min(stall - delayed, used))
        number, longest, longest_own = LAYOUT.unpack_from(self._map)
        LAYOUT.pack_into(self._map, 0, number, max(longest, stall), max(longest_own, own))
        if self._stacks is not None and own > SAMPLED_SECONDS:
            self._stacks.write(f"{number:.0f} end of a stall of {own:.3f} s\n")
        self._last = now
        self._loop.call_later(PERIOD_SECONDS, self._beat)


class StackLog:
    """Writes stack traces of all threads during a stall of this thread's event loop. This work prolongs the stall.

    last_beat: function that returns the monotonic time at which the loop last ran.
    """

    def __init__(self, path: Path, last_beat: Callable[[], float]) -> None:
        self._file = path.open("a", buffering=1)
        self._last_beat = last_beat
        self._thread = threading.get_ident()
        gc.callbacks.append(self._collected)
        threading.Thread(target=self._sample, daemon=True, name="loop monitor").start()

    def write(self, text: str) -> None:
        self._file.write(text)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """Write a line about a long garbage collection, which stops all threads."""
        if phase == "start":
            self._collecting = time.monotonic()
        elif (seconds := time.monotonic() - self._collecting) > SAMPLED_SECONDS:
            self.write(f"  collected generation {info['generation']} in {seconds:.3f} s\n")

    def _sample(self) -> None:
        sampled = 0.0
        while True:
            time.sleep(SAMPLED_SECONDS / 2)
            began = self._last_beat()
            if time.monotonic() - began > SAMPLED_SECONDS and began != sampled:
                sampled = began
                self.write(
                    "".join(
                        f"  [{'loop' if ident == self._thread else 'other'}]\n"
                        + "".join(traceback.format_stack(frame)[-7:])
                        for ident, frame in sys._current_frames().items()
                        if ident != threading.get_ident()
                    )
                )


def stacks_of(path: Path) -> Path:
    """Path of the file of a `StackLog`, which is written only if it exists when the monitor starts."""
    return path.with_suffix(".stacks")


class Stalls:
    """Reads the file of a `LoopMonitor` in another process."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(LAYOUT.size))
        self._map = _mapped(path)
        self.stacks = stacks_of(path)

    def reset(self) -> None:
        number = LAYOUT.unpack_from(self._map)[0]
        LAYOUT.pack_into(self._map, 0, number + 1, 0.0, 0.0)

    def longest(self) -> tuple[float, float]:
        """The longest `seconds` and the longest `own_seconds` of a stall since `reset`."""
        _, seconds, own_seconds = LAYOUT.unpack_from(self._map)
        return seconds, own_seconds


def _mapped(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), LAYOUT.size)


def install(path: Path) -> None:
    """Arrange that a monitor starts together with the server's event loop. path: file of the monitor."""
    from server.compose import Server

    serve = Server.serve_until_signal

    async def monitored(self: Server, *arguments: Any) -> None:
        LoopMonitor(path)
        await serve(self, *arguments)

    Server.serve_until_signal = monitored  # type: ignore[method-assign]


if __name__ == "__main__":
    from server.cli import main

    install(Path(sys.argv[1]))
    main(sys.argv[2:])
