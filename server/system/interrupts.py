"""Handle Ctrl-C while a command is starting, before it has begun its work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_at_interrupts() -> Iterator[None]:
    """Let Ctrl-C end the process at once, without a traceback, while modules are imported and flags are parsed.

    There is nothing to clean up yet. After the context, Ctrl-C raises KeyboardInterrupt, as Python does by default.
    Nothing changes if the signal is ignored or has another handler, and outside of the main thread.
    """
    ours = (signal.default_int_handler, signal.SIG_DFL)
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) not in ours:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
