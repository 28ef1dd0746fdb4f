"""Run the application under uvicorn, with our own sockets, signal handling and HTTP protocol.

The socket listens before the models load, so that probes are answered from the beginning. The first SIGTERM or SIGINT
lets running requests finish; the second one ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Scope

from server.api.connection.protocol import HEADER_SECONDS, LimitedHttpProtocol, choose_protocol
from server.api.connection.socket_protocol import MAX_MESSAGE_BYTES, LimitedSocketProtocol
from server.api.connection.tls import read_certificates_again, tls_context
from server.api.lifecycle import Lifecycle
from server.errors import StartError
from server.settings.settings import Settings, is_loopback

log = logging.getLogger("triptych.serve")

KEEP_ALIVE_SECONDS = 30
STALLED_CLIENT_MILLISECONDS = 30_000
"""The kernel closes a connection if its client does not acknowledge sent bytes for this time."""
PROBE_AFTER_SECONDS, PROBE_INTERVAL_SECONDS, MAX_PROBES = 20, 10, 3
"""The kernel probes a connection that has been silent for 20 s, and closes it after three probes without an answer.

Probes find vanished clients while a whole answer is generated and no bytes are sent that would stay unacknowledged."""
BACKLOG_CONNECTIONS = 2048
DEFAULT_CONNECTIONS = 4096
RESERVED_FILES = 128
"""Number of open files kept for other uses than connections: models, libraries, pipes, and refused connections."""
SWITCH_SECONDS = 0.001
"""Time after which a thread that runs Python code gives up the global lock. Python's default is 5 ms.

The event loop may have to wait this long for each busy thread."""


def connection_limit(wanted: int | None) -> int:
    """Number of connections that the process can keep open. Raises its limit of open files as far as the system allows.

    wanted: the setting, or None for the default.
    Raises StartError if the limit is not above `RESERVED_FILES`.
    """
    limit = wanted or DEFAULT_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limit + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft <= RESERVED_FILES:
            raise StartError(
                f"the limit of open files is {soft} (ulimit -n); a server needs more than {RESERVED_FILES}"
            )
        if soft < needed:
            limit = max(soft - RESERVED_FILES, soft // 2)
            if wanted is not None:
                log.warning("only %d connections: the limit of open files is %d (ulimit -n)", limit, soft)
    return limit


def listen(host: str, port: int, setting: str = "port") -> socket.socket:
    """Open a listening socket. Raises StartError if it cannot listen. setting: name of the port setting, for errors."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG_CONNECTIONS)
    except socket.gaierror:
        raise StartError(f"host {host!r} is not an address of this machine") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"{setting} {port} on {host} is already in use") from None
        raise StartError(f"cannot listen on {host} {setting} {port}: {error.strerror}") from None
    find_vanished_clients(listener)
    return listener


def find_vanished_clients(listener: socket.socket) -> None:
    """Set options of a listening socket by which the kernel closes connections whose client has vanished.

    Accepted connections inherit the options. On Linux, TCP_USER_TIMEOUT also limits the time without an answer to
    probes, so the connection of a vanished client ends after 30 s; on other systems after 50 s.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE": PROBE_AFTER_SECONDS,
        "TCP_KEEPINTVL": PROBE_INTERVAL_SECONDS,
        "TCP_KEEPCNT": MAX_PROBES,
        "TCP_USER_TIMEOUT": STALLED_CLIENT_MILLISECONDS,
    }
    for name, value in options.items():
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@dataclass(frozen=True)
class Endpoints:
    """The listening sockets of a server.

    api: socket for all routes.
    metrics: socket for `/metrics` and the probes, if they have a separate port; otherwise None.
    tls, metrics_tls: TLS contexts for the two sockets; None for plain HTTP.
    max_connections: maximum number of open connections to `api`.
    """

    api: socket.socket
    metrics: socket.socket | None = None
    tls: ssl.SSLContext | None = None
    metrics_tls: ssl.SSLContext | None = None
    max_connections: int = sys.maxsize

    @classmethod
    @contextlib.contextmanager
    def open(cls, settings: Settings) -> Iterator[Endpoints]:
        """Context manager that opens the sockets of the settings, and closes them at exit.

        Raises StartError for unusable addresses or TLS files, or a too low limit of open files.
        """
        tls = tls_context(settings)
        with contextlib.ExitStack() as stack:
            api = stack.enter_context(listen(settings.host, settings.port))
            metrics = None
            if settings.metrics_port is not None:
                metrics = stack.enter_context(listen(settings.metrics_host, settings.metrics_port, "metrics_port"))
            metrics_tls = None if is_loopback(settings.metrics_host) else tls
            yield cls(api, metrics, tls, metrics_tls, connection_limit(settings.max_connections))

    def read_certificates_again(self, settings: Settings) -> None:
        """Load the current certificate files for new connections. Does nothing without TLS."""
        if self.tls is not None:
            read_certificates_again(self.tls, settings)

    @property
    def url(self) -> str:
        """URL of the API, such as `http://127.0.0.1:8000`."""
        return _url(self.api, self.tls)

    @property
    def metrics_url(self) -> str:
        """URL of the metrics port; empty if there is none."""
        return "" if self.metrics is None else _url(self.metrics, self.metrics_tls)


def _url(listener: socket.socket, tls: ssl.SSLContext | None) -> str:
    host, port = listener.getsockname()[:2]
    return f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"


class _UvicornServer(uvicorn.Server):
    """uvicorn server on one socket that is already open, with a time limit for TLS handshakes.

    It installs none of uvicorn's signal handlers, which would close the socket before running requests finish.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._listener = listener
        self._tls = tls

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        if self.should_exit:  # the lifespan has failed
            return

        def create_protocol() -> asyncio.Protocol:
            protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return protocol

        self.servers.append(
            await asyncio.get_running_loop().create_server(
                create_protocol,
                sock=self._listener,
                backlog=BACKLOG_CONNECTIONS,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HEADER_SECONDS,
            )
        )


async def serve(
    app: ASGIApp,
    monitoring: ASGIApp,
    lifecycle: Lifecycle,
    endpoints: Endpoints,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    receive: Callable[[Scope, bytearray | None, Callable[[], None]], Response | None],
) -> None:
    """Serve until `stop` is set or the worker pool gives up, then drain and stop.

    app: the application, whose lifespan is `lifecycle.lifespan`.
    monitoring: the application of the metrics port.
    on_ready: called once, when everything is loaded.
    receive: replaces `LimitedHttpProtocol.receive`.
    Raises StartError if loading or the workers fail, CheckpointError if a checkpoint is the reason.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    chosen = await choose_protocol()
    limited = type(
        chosen.__name__, (chosen,), {"max_connections": endpoints.max_connections, "receive": staticmethod(receive)}
    )
    servers = [_UvicornServer(_config(app, limited, "on", sockets=True), endpoints.api, endpoints.tls)]
    if endpoints.metrics is not None:
        config = _config(monitoring, LimitedHttpProtocol, "off")
        servers.append(_UvicornServer(config, endpoints.metrics, endpoints.metrics_tls))
    serving = {asyncio.create_task(server.serve(), name="http") for server in servers}
    stopping = asyncio.create_task(stop.wait(), name="stop")
    loading = asyncio.create_task(lifecycle.wait_loaded(), name="wait for loading")
    failing = asyncio.create_task(lifecycle.wait_failed(), name="wait for a failure")
    try:
        await asyncio.wait({*serving, stopping, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            on_ready()
            await asyncio.wait({*serving, stopping, failing}, return_when=asyncio.FIRST_COMPLETED)
        for ended in filter(asyncio.Task.done, serving):
            ended.result()
        # uvicorn closes the listener before it ends the lifespan. Draining first keeps /ready answering.
        await lifecycle.drain()
        if failing.done():
            failing.result()
    finally:
        loading.cancel()
        stopping.cancel()
        failing.cancel()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*serving, loading, failing, return_exceptions=True)


async def serve_until(app: ASGIApp, endpoints: Endpoints, work: Callable[[], None]) -> None:
    """Answer requests to all ports by `app` while `work` runs in a thread. The listening sockets stay open at the end.

    Raises the exception of `work`.
    """
    listeners = [(endpoints.api, endpoints.tls)]
    listeners += [] if endpoints.metrics is None else [(endpoints.metrics, endpoints.metrics_tls)]
    servers = [
        _UvicornServer(_config(app, LimitedHttpProtocol, "off"), listener.dup(), tls) for listener, tls in listeners
    ]
    serving = [asyncio.create_task(server.serve(), name="http") for server in servers]
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            loop.call_soon_threadsafe(done.set_exception, error)
        else:
            loop.call_soon_threadsafe(done.set_result, None)

    loop = asyncio.get_running_loop()
    # Not a thread of a pool: the end of the process would wait for it.
    threading.Thread(target=run, name="work", daemon=True).start()
    try:
        await done
    finally:
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*serving, return_exceptions=True)


def _config(
    app: ASGIApp, protocol: type[LimitedHttpProtocol], lifespan: Literal["on", "off"], sockets: bool = False
) -> uvicorn.Config:
    """The uvicorn configuration of one port. sockets: accept WebSocket connections."""
    return uvicorn.Config(
        app,
        http=protocol,
        ws=LimitedSocketProtocol if sockets else "none",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # see `server.api.entry.forwarded`
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=2,
    )


def stop_on_signals(stop: asyncio.Event, lifecycle: Lifecycle, on_reload: Callable[[], None]) -> None:
    """Install signal handlers: the first SIGTERM or SIGINT sets `stop`, the second one ends the process.

    SIGHUP calls `on_reload`, and restarts the workers one by one. If the server runs in a terminal, SIGHUP means that
    the terminal was closed, and stops the server.
    """

    def on_signal() -> None:
        if stop.is_set():
            log.warning("second signal: stopping without waiting for running requests")
            lifecycle.pool.kill()
            os._exit(130)
        stop.set()

    def on_hangup() -> None:
        on_reload()
        lifecycle.restart_workers()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, on_signal if sys.stderr.isatty() else on_hangup)
