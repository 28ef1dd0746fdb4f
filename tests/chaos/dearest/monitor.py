"""Start `triptych` with a monitor of its event loop: `python -m tests.chaos.dearest.monitor FILE serve ...`.

A timer runs in the loop every few milliseconds. A gap between two runs that is longer than the timer's period is a
stall. A thread samples the stack of the loop's thread during a stall and appends it to `FILE.stacks`.

A loaded machine delays the process too. Two lengths are therefore reported. `seconds` is by the clock. `own_seconds`
leaves out the time in which the kernel had the loop's thread wait for a processor, and is at most the processor time
that all threads of the process used in the gap: other threads stop the loop while they hold Python's global lock.
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import struct
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

PERIOD_SECONDS = 0.002
SAMPLED_SECONDS = 0.02
"""The stack is sampled in stalls of at least this length."""
LAYOUT = struct.Struct("<ddd")
"""The shared file: number of the measurement, longest `seconds` and longest `own_seconds` since its start."""


class LoopMonitor:
    """Writes the longest stalls of the running event loop to a file that other processes map. path: the file."""

    def __init__(self, path: Path) -> None:
        self._map = _mapped(path)
        self._stacks = path.with_suffix(".stacks")
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._schedstat = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._last = self._now()
        gc.callbacks.append(self._collected)
        threading.Thread(target=self._sample, daemon=True, name="loop monitor").start()
        self._beat()

    def _now(self) -> tuple[float, float, float]:
        """Clock, processor time of the process, and time in which the loop's thread waited for a processor."""
        delay = int(Path(self._schedstat).read_text().split()[1]) / 1e9
        return time.monotonic(), time.process_time(), delay

    def _beat(self) -> None:
        now = self._now()
        seconds, used, delayed = (a - b for a, b in zip(now, self._last, strict=True))
        stall = max(0.0, seconds - PERIOD_SECONDS)
        own = max(0.0, min(stall - delayed, used))
        number, longest, longest_own = LAYOUT.unpack_from(self._map)
        LAYOUT.pack_into(self._map, 0, number, max(longest, stall), max(longest_own, own))
        if own > SAMPLED_SECONDS:
            with self._stacks.open("a") as file:
                file.write(f"{number:.0f} end of a stall of {own:.3f} s\n")
        self._last = now
        self._loop.call_later(PERIOD_SECONDS, self._beat)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """Note a long garbage collection, which stops all threads."""
        if phase == "start":
            self._collecting = time.monotonic()
        elif (seconds := time.monotonic() - self._collecting) > SAMPLED_SECONDS:
            with self._stacks.open("a") as file:
                file.write(f"  collected generation {info['generation']} in {seconds:.3f} s\n")

    def _sample(self) -> None:
        sampled = 0.0
        while True:
            time.sleep(SAMPLED_SECONDS / 2)
            began = self._last[0]
            if time.monotonic() - began > SAMPLED_SECONDS and began != sampled:
                sampled = began
                loop = self._thread
                text = "".join(
                    f"  [{'loop' if ident == loop else 'other'}]\n" + "".join(traceback.format_stack(frame)[-7:])
                    for ident, frame in sys._current_frames().items()
                    if ident != threading.get_ident()
                )
                with self._stacks.open("a") as file:
                    file.write(text)


class Stalls:
    """The reader's side of `LoopMonitor`, in the process that measures."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(LAYOUT.size))
        self._map = _mapped(path)
        self.stacks = path.with_suffix(".stacks")

    def reset(self) -> None:
        number = LAYOUT.unpack_from(self._map)[0]
        LAYOUT.pack_into(self._map, 0, number + 1, 0.0, 0.0)

    def longest(self) -> tuple[float, float]:
        """(seconds, own_seconds) of the longest stall since `reset`."""
        _, seconds, own_seconds = LAYOUT.unpack_from(self._map)
        return seconds, own_seconds


def _mapped(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), LAYOUT.size)


def install(path: Path) -> None:
    """Start a monitor in the loop that serves."""
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
