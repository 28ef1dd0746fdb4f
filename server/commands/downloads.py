"""Download models from the Hugging Face hub before they are loaded.

The progress is shown as a bar or as log lines, and the server's health probes are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from server.errors import CheckpointError, NotReady
from server.model_sources import hub_sources
from server.settings.settings import Settings
from weights.errors import ResolveError
from weights.resolve import HubSource, find_cached, find_download

if TYPE_CHECKING:
    from server.api.serve import Endpoints
    from weights.hub.fetch import Download

log = logging.getLogger("triptych")

_LOG_STEP = 0.1
"""Share of a download after which the next log line is written."""


class Downloads:
    """Downloads models, one after another, and shows the progress. Also the ASGI application that answers meanwhile.

    sources: the models. bars: whether a bar may be drawn on a terminal; otherwise log lines are written.
    planned: the downloads that are needed; None to ask the hub.
    """

    def __init__(self, sources: Sequence[HubSource], bars: bool, planned: Sequence[Download] | None = None) -> None:
        self._sources = sources
        self._planned = planned
        self._bars = bars and sys.stderr.isatty()
        self._fetched: list[Download] = []

    @property
    def done_bytes(self) -> int:
        return sum(download.done_bytes for download in self._fetched)

    @property
    def total_bytes(self) -> int:
        return sum(download.total_bytes for download in self._fetched)

    def run(self) -> None:
        """Ask the hub about all models, then download them. Raises CheckpointError if one cannot be fetched."""
        from weights.hub.fetch import fetch

        try:
            found = [find_download(source) for source in self._sources] if self._planned is None else self._planned
            self._fetched = [download for download in found if not isinstance(download, Path)]
            for download in self._fetched:
                with self._shown(download):
                    fetch(download)
        except ResolveError as error:
            raise CheckpointError(str(error)) from None

    @contextlib.contextmanager
    def _shown(self, download: Download) -> Iterator[None]:
        """Context manager around one download, in which a thread shows the progress."""
        from tqdm import tqdm

        stop = threading.Event()
        text = describe(download)
        if self._bars:
            print(text, file=sys.stderr)
        else:
            log.info("%s", text)
        total = download.total_bytes
        bar = tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, disable=not self._bars, leave=False)

        def watch() -> None:
            logged = 0.0
            while not stop.wait(0.25):
                done = download.done_bytes
                bar.update(done - bar.n)
                if not self._bars and total and done / total >= logged + _LOG_STEP:
                    logged = done / total
                    log.info("%s: %s of %s", download.source, size_text(done), size_text(total))

        watching = threading.Thread(target=watch, name="show download", daemon=True)
        watching.start()
        try:
            yield
        finally:
            stop.set()
            watching.join()
            bar.close()
        message = f"{download.source}: fetched {size_text(total)}"
        if self._bars:
            print(message, file=sys.stderr)
        else:
            log.info("%s", message)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request during the download: 200 for `/health`, and 503 with the progress for other paths."""
        if scope["type"] != "http":
            return
        if scope["path"] == "/health":
            await JSONResponse({"status": "ok"})(scope, receive, send)
            return
        done, total = self.done_bytes, self.total_bytes
        so_far = f": {size_text(done)} of {size_text(total)}" if total else ""
        body = {
            "error": {"code": NotReady.code, "message": f"the models are being downloaded{so_far}; try again soon"},
            "progress": {"done_bytes": done, "total_bytes": total},
        }
        await JSONResponse(body, NotReady.status, {"Retry-After": "5"})(scope, receive, send)


def download_while_serving(
    settings: Settings, endpoints: Endpoints, run: Callable[[Callable[[], Awaitable[Any]]], Any]
) -> None:
    """Download the models of a server that are not in the cache, and answer its health probes meanwhile.

    Does nothing with `HF_HUB_OFFLINE`.

    endpoints: the open listening sockets. run: runs a coroutine function and returns its result.
    Raises CheckpointError for a model that cannot be fetched.
    """
    from huggingface_hub import constants

    from server.api.serve import serve_until

    missing = [source for source in hub_sources(settings) if find_cached(source) is None]
    if not missing or constants.HF_HUB_OFFLINE:
        return
    downloads = Downloads(missing, bars=settings.log_format == "text")

    async def work() -> None:
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, _stop)
        try:
            await serve_until(downloads, endpoints, downloads.run)
        finally:
            for signal_number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(signal_number)

    run(work)


def _stop() -> None:
    """End the process at once, because the downloading threads would end only after their files."""
    log.warning("stopped during a download: the next start continues it")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def download(sources: Sequence[HubSource]) -> None:
    """Download the models that are not in the cache, for a command in a terminal.

    Does nothing with `HF_HUB_OFFLINE`. Raises CheckpointError for a model that cannot be fetched.
    """
    from huggingface_hub import constants

    missing = [source for source in sources if find_cached(source) is None]
    if missing and not constants.HF_HUB_OFFLINE:
        in_thread(Downloads(missing, bars=True).run)


def in_thread(work: Callable[[], None]) -> None:
    """Run a function in a thread and wait for it, so that Ctrl-C ends the process at once. Raises its exceptions."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # the waiting thread raises it
            failures.append(error)

    thread = threading.Thread(target=run, name="download", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    except KeyboardInterrupt:
        print("\ntriptych: stopped; the same command continues the download", file=sys.stderr, flush=True)
        os._exit(130)
    if failures:
        raise failures[0]


def describe(download: Download) -> str:
    """Describe a download in one line: repository, commit, number and size of the files, and the target directory."""
    from huggingface_hub import constants

    count, total, there = len(download.missing), download.total_bytes, download.done_bytes
    rest = f", of which {size_text(there)} are there already" if there else ""
    return (
        f"fetching {download.repository} ({download.revision}, commit {download.commit[:12]}): {count} "
        f"file{'s' * (count != 1)}, {size_text(total)}{rest}, into {constants.HF_HUB_CACHE}"
    )


def size_text(size: float) -> str:
    """Write a number of bytes for people, for example `3.1 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
