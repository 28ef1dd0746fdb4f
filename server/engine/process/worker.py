"""The worker process: `python -m server.engine.process.worker --fd N`.

N is the inherited descriptor of one end of a socket pair.

With `--processors`, the worker runs only on the given processors, so that several workers share the cores of a CPU
(`server.system.cores`).

Exits with 0 after `Shutdown` or when the socket is closed, and with 2 if a model cannot be loaded. The operating system
settings are made before torch is imported, because the import takes seconds and reads the environment. Heartbeats also
start before the import.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys

from server.engine.process.host import leave_signals_to_parent, let_threads_sleep, pin_to_processors
from server.engine.process.loading_beats import LoadingBeats
from server.engine.process.worker_socket import ConnectionClosed, WorkerSocket
from server.ipc.wire.worker_messages import Configure, Shutdown
from server.log_format import ENVIRONMENT, start_logging
from server.system.child import die_with_parent, end_before_the_server
from server.system.cores import interrupt_others


def main(arguments: list[str] | None = None) -> int:
    """Run the worker until it is shut down. Returns the exit status.

    arguments: command line arguments; None for the arguments of the process.
    """
    parser = argparse.ArgumentParser(
        prog="server.engine.process.worker", description="A Triptych worker; the server starts it."
    )
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the socket to the server")
    parser.add_argument("--processors", default="", help="logical processors to run on, separated by commas")
    options = parser.parse_args(arguments)
    descriptor: int = options.fd
    die_with_parent()
    end_before_the_server()
    leave_signals_to_parent()
    interrupt_others()
    if options.processors:
        pin_to_processors([int(number) for number in options.processors.split(",")])
    let_threads_sleep()
    start_logging("warning", os.environ.get(ENVIRONMENT, "text"))
    try:
        connection = WorkerSocket(socket.socket(fileno=descriptor))
    except OSError:
        print(f"error: descriptor {descriptor} is not a socket; workers are started by the server", file=sys.stderr)
        return 2
    try:
        first, *early = connection.receive_some()
        if isinstance(first, Shutdown):
            return 0
        assert isinstance(first, Configure), f"the first message must be Configure, not {type(first).__name__}"
        beats = LoadingBeats(connection, first.epoch)
        from server.engine.process.service import run_worker

        return run_worker(connection, first, early, beats.stop)
    except ConnectionClosed:
        return 0


if __name__ == "__main__":
    sys.exit(main())
