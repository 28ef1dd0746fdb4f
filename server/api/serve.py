"""The life of a server: listen, load, serve, drain, stop. Brings uvicorn, the supervisor and signals together.

The listener opens before anything loads, so that probes get answers from the first moment; a signal lets running
requests finish, a second one does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from server.api.protocol import Protocol
from server.api.state import State
from server.errors import StartError
from server.ipc.supervisor import Supervisor

log = logging.getLogger("triptych.serve")

KEEP_ALIVE_SECONDS = 30
STALLED_READER_MS = 30_000
"""The kernel drops a connection whose client takes no byte for so long."""

FLUSH_SECONDS = 1.0
BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises StartError, one line, when the address cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except socket.gaierror:
        raise StartError(f"host {host!r} is not an address of this machine") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} on {host} is already in use") from None
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_READER_MS)
    return listener


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: ours drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: ASGIApp,
    state: State,
    supervisor: Supervisor,
    listener: socket.socket,
    load: Callable[[], Awaitable[None]],
    on_ready: Callable[[], None],
) -> None:
    """Serve until a signal, then drain and stop. The worker never outlives this.

    load: makes the tokenizers ready; it runs while the worker loads. on_ready: called once, when all is loaded.
    Raises StartError (or CheckpointError) when loading fails.
    """
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    stopping = asyncio.Event()
    _on_signals(stopping, supervisor)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    asked = asyncio.create_task(stopping.wait(), name="signal")
    loading = asyncio.create_task(_load(load, supervisor), name="loading")
    try:
        await asyncio.wait({serving, asked, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            # What lives as long as the process need not be looked at by every collection.
            gc.collect()
            gc.freeze()
            state.started = True
            on_ready()
            await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        await _drain(state)
    finally:
        loading.cancel()
        asked.cancel()
        state.draining = True
        server.should_exit = True
        await asyncio.gather(serving, loading, return_exceptions=True)
        await supervisor.stop()


async def _load(load: Callable[[], Awaitable[None]], supervisor: Supervisor) -> None:
    """Tokenizers and the worker side by side: most of the worker's time is its imports."""
    worker = asyncio.create_task(supervisor.start(), name="worker")
    try:
        await load()
        await worker
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


def _on_signals(stopping: asyncio.Event, supervisor: Supervisor) -> None:
    def on_signal() -> None:
        if stopping.is_set():
            log.warning("stopping at once")
            supervisor.kill()
            os._exit(130)
        stopping.set()

    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, on_signal)


async def _drain(state: State) -> None:
    """Refuse what is new, let what runs finish, and tell it when its time is over."""
    state.draining = True
    if state.answering:
        log.info("draining %d requests, %g s at most", state.answering, state.settings.grace_seconds)
    if not await _idle(state, state.settings.grace_seconds):
        state.client.fail_all("not_ready", "the server is shutting down")
        await _idle(state, FLUSH_SECONDS)


async def _idle(state: State, seconds: float) -> bool:
    """Whether all answers were given within so many seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while state.answering and loop.time() < end:
        await asyncio.sleep(0.02)
    return not state.answering
