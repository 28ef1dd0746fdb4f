"""Show the progress of loading: bars on a terminal, else log lines."""

from __future__ import annotations

import logging
import sys
from typing import Any

from server.ipc.wire.worker_messages import PreparingKernels, Progress

log = logging.getLogger("triptych")

_LARGE_BYTES = 256 << 20
"""If a model has more bytes of weights than this, a log line is also written before they are read."""
_KERNELS = "kernels of the GPU"
"""Name of the progress bar for kernels. No model has such a name."""


class LoadProgress:
    """Shows the progress of loading. Call the object with each message about the progress.

    bars: whether progress bars may be drawn if standard error is a terminal.
    """

    def __init__(self, bars: bool = True) -> None:
        self._bars_allowed = bars
        self._bars: dict[str, Any] = {}
        self._logged: set[tuple[str, bool]] = set()

    def __call__(self, progress: Progress | PreparingKernels) -> None:
        draws = self._bars_allowed and sys.stderr.isatty()
        if isinstance(progress, PreparingKernels):
            (self._draw_kernels if draws else self._log_kernels)(progress)
        else:
            (self._draw if draws else self._log)(progress)

    def _draw(self, progress: Progress) -> None:
        from tqdm import tqdm

        bar = self._bars.get(progress.model)
        if bar is None:
            bar = tqdm(desc=progress.model, total=progress.total_bytes, unit="B", unit_scale=True, unit_divisor=1024)
            self._bars[progress.model] = bar
        bar.update(progress.done_bytes - bar.n)
        if progress.done_bytes >= progress.total_bytes:
            self._bars.pop(progress.model).close()

    def _log(self, progress: Progress) -> None:
        complete = progress.done_bytes >= progress.total_bytes
        if (progress.model, complete) not in self._logged and (complete or progress.total_bytes > _LARGE_BYTES):
            self._logged.add((progress.model, complete))
            size = progress.total_bytes / 2**20
            log.info("%s: %s %.1f MiB of weights", progress.model, "read" if complete else "reading", size)

    def _draw_kernels(self, progress: PreparingKernels) -> None:
        """Draw the number of prepared kernels, without a total, because the total is not known."""
        from tqdm import tqdm

        bar = self._bars.get(_KERNELS)
        if bar is None:
            bar = self._bars[_KERNELS] = tqdm(
                desc=_KERNELS, bar_format="{desc}: {n_fmt} prepared in {elapsed}", mininterval=0
            )
        bar.update(progress.num_kernels - bar.n)
        if progress.is_complete:
            self._bars.pop(_KERNELS).close()

    def _log_kernels(self, progress: PreparingKernels) -> None:
        log.info(
            "%s %d kernels of the GPU in %.0f s, kept in %s for the next start",
            "prepared" if progress.is_complete else "compiling, so far",
            progress.num_kernels,
            progress.seconds,
            progress.directory,
        )
