"""Run a server in a thread of this process, for client commands that load a model instead of calling a server.

The worker is a child process, as in any server; it ends with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future

from server.api.serve import Endpoints
from server.commands.downloads import download
from server.compose import Server
from server.model_sources import hub_sources
from server.settings.read import load

_PRIVATE = {
    "host": "127.0.0.1",
    "port": 0,
    "metrics_port": None,
    "tls_certificate": None,
    "tls_key": None,
    "access_log": False,
    "traces": False,
}
"""Settings of a server that runs for one command. They take precedence over the environment and over flags."""


@contextlib.contextmanager
def serve_in_process(model: str, flags: Mapping[str, str], worker: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Context manager that serves a model on a free loopback port. Yields the URL and an API key.

    The key is random, so that other users of the machine cannot use the server.

    model: `[NAME=]PATH_OR_HUB_ID`.
    flags: further settings, by name.
    worker: command that starts the worker process.
    Raises StartError for invalid settings, and CheckpointError for a checkpoint that cannot be found or loaded.
    """
    key = secrets.token_urlsafe(24)
    settings = load({**flags, **_PRIVATE, "models": [model], "api_keys": [key]})
    download(hub_sources(settings))
    server = Server(settings, worker)
    ready: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    with Endpoints.open(settings) as endpoints:

        def run() -> None:
            try:
                loop.run_until_complete(server.serve(endpoints, stop, ready.set_result))
            except BaseException as error:  # the waiting thread raises it
                if not ready.done():
                    ready.set_exception(error)
            finally:
                if not ready.done():
                    ready.cancel()
                loop.close()

        thread = threading.Thread(target=run, name="server")
        thread.start()
        try:
            yield ready.result(), key
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed if the server ended by itself
                loop.call_soon_threadsafe(stop.set)
            thread.join()
