"""Show the progress of loading: a bar for each model on a terminal, else log lines."""

from __future__ import annotations

import logging
import sys
from typing import Any

from server.ipc.wire.messages import Progress

log = logging.getLogger("triptych")

_LARGE_BYTES = 256 << 20
"""Size of weights above which a log line is written before they are read, because reading them takes long."""


class LoadProgress:
    """Shows the progress of loading. Called with each progress message.

    bars: whether progress bars may be drawn if standard error is a terminal.
    """

    def __init__(self, bars: bool = True) -> None:
        self._bars_allowed = bars
        self._bars: dict[str, Any] = {}
        self._logged: set[tuple[str, bool]] = set()

    def __call__(self, progress: Progress) -> None:
        if self._bars_allowed and sys.stderr.isatty():
            self._draw(progress)
        else:
            self._log(progress)

    def _draw(self, progress: Progress) -> None:
        from tqdm import tqdm

        bar = self._bars.get(progress.model)
        if bar is None:
            bar = tqdm(desc=progress.model, total=progress.total_bytes, unit="B", unit_scale=True, unit_divisor=1024)
            self._bars[progress.model] = bar
        bar.update(progress.done_bytes - bar.n)
        if progress.done_bytes >= progress.total_bytes:
            bar.close()
            del self._bars[progress.model]

    def _log(self, progress: Progress) -> None:
        complete = progress.done_bytes >= progress.total_bytes
        if (progress.model, complete) not in self._logged and (complete or progress.total_bytes > _LARGE_BYTES):
            self._logged.add((progress.model, complete))
            size = progress.total_bytes / 2**20
            log.info("%s: %s %.1f MiB of weights", progress.model, "read" if complete else "reading", size)
