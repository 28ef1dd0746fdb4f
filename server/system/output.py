"""Make standard input, output and error usable for a server that was started without them or writes to a full disk."""

from __future__ import annotations

import logging
import os
import sys

log = logging.getLogger("triptych")


def open_closed_files() -> None:
    """Open `/dev/null` for each of standard input, output and error that is closed.

    Otherwise a socket or pipe could get its file descriptor, and libraries that print would write into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this one
            assert opened == descriptor
    # Python has set the objects of closed files to None.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def show(text: str) -> None:
    """Print a text for the operator. If standard output cannot be written, log a warning, and print nothing more."""
    try:
        print(text, flush=True)
    except OSError as error:
        log.warning("cannot write to standard output (%s): nothing more is written there", error.strerror)
        # Python would try again, and complain, when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
