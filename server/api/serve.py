"""Run the application under uvicorn: socket, signals and the fast protocol.

The listener opens before the models load, so that probes get answers from the first moment. The first signal lets
running requests finish; the second one ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from server.api.lifecycle import Lifecycle
from server.api.protocol import choose_protocol
from server.errors import StartError

log = logging.getLogger("triptych.serve")

KEEP_ALIVE_SECONDS = 30
STALLED_CLIENT_MILLISECONDS = 30_000
"""The kernel closes a connection whose client acknowledges no byte for this time."""
BACKLOG_CONNECTIONS = 2048
SWITCH_SECONDS = 0.001
"""Time after which a thread that runs Python code lets the event loop run. Python's default is 5 ms, and the loop waits
once for each thread that is busy."""


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises StartError if the address cannot be used."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG_CONNECTIONS)
    except socket.gaierror:
        raise StartError(f"host {host!r} is not an address of this machine") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} on {host} is already in use") from None
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_CLIENT_MILLISECONDS)
    return listener


class _UvicornServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would close the listener before running requests finish."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: ASGIApp, lifecycle: Lifecycle, listener: socket.socket, stop: asyncio.Event, on_ready: Callable[[], None]
) -> None:
    """Serve until `stop` is set, then drain and stop.

    app: the application, whose lifespan is that of `lifecycle`.
    on_ready: called once, when everything is loaded.
    Raises StartError when loading fails, CheckpointError if a checkpoint is the reason.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    config = uvicorn.Config(
        app,
        http=await choose_protocol(),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=2,
    )
    server = _UvicornServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    loading = asyncio.create_task(lifecycle.wait_loaded(), name="wait for loading")
    try:
        await asyncio.wait({serving, stopping, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            on_ready()
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        # uvicorn closes the listener before it ends the lifespan. Draining first keeps /ready answering.
        await lifecycle.drain()
    finally:
        loading.cancel()
        stopping.cancel()
        server.should_exit = True
        await asyncio.gather(serving, loading, return_exceptions=True)


def stop_on_signals(stop: asyncio.Event, lifecycle: Lifecycle) -> None:
    """Set `stop` at the first SIGTERM or SIGINT, and end the process at the second one."""

    def on_signal() -> None:
        if stop.is_set():
            log.warning("second signal: stopping without waiting for running requests")
            lifecycle.supervisor.kill()
            os._exit(130)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
