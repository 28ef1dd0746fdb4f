"""Run a script in a process that does not outlive its parent: `python -P child.py SCRIPT ARGUMENTS`.

A child that works for a long time would otherwise go on when its parent was killed. Works on Linux only. On other
systems, the script itself must end when its standard input is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import runpy
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
ADDED_OOM_SCORE = 300
"""Added to the score by which the kernel chooses a process to kill. The kernel treats the child as if it used 30% more
of the available memory."""


def die_with_parent() -> None:
    """Let Linux kill this process when the thread that has started it ends. Does nothing on other systems."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_before_the_server(adjustment: Path = Path("/proc/self/oom_score_adj")) -> None:
    """Let Linux kill this process rather than the HTTP process when the memory of the machine or container is used up.

    A child is replaced in seconds. The end of the HTTP process would end all connections.

    adjustment: file of the kernel with a value from -1000 to 1000. A process with a higher value is killed first. The
        child adds to the value that the operator has set for the whole server.
    """
    with contextlib.suppress(OSError, ValueError):
        adjustment.write_text(str(min(int(adjustment.read_text()) + ADDED_OOM_SCORE, 1000)))


if __name__ == "__main__":
    die_with_parent()
    end_before_the_server()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
