"""Run the product with a bug planted in it: `python -m tests.chaos.planted BUG -- serve ...`.

The bug replaces functions of the product in the HTTP process, in its worker, or in both; the product has no code
for it. A check that passes although its bug is planted does not check anything. `BUG --monitored FILE serve ...` adds
the monitor of the event loop (`tests.chaos.dearest.monitor`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.chaos.bugs import BUGS, install

WORKER = "--in-worker"
MONITORED = "--monitored"


def worker_command(bug: str) -> tuple[str, ...]:
    """The command line that starts a worker with the bug."""
    return sys.executable, "-P", "-m", "tests.chaos.planted", bug, WORKER


def main(arguments: list[str]) -> None:
    bug, kind, *rest = arguments
    if bug not in BUGS:
        raise SystemExit(f"no planted bug is named {bug}; there are {', '.join(BUGS)}")
    if kind == WORKER:
        install(bug, "worker")
        from server.engine.process import worker

        raise SystemExit(worker.main(rest))
    if kind == MONITORED:
        from server import cli
        from tests.chaos.dearest import monitor

        install(bug, "http")
        monitor.install(Path(rest[0]))
        cli.main(rest[1:], worker_command(bug))
        return
    from server import cli

    install(bug, "http")
    cli.main(rest, worker_command(bug))


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2])]
    main(sys.argv[1:])
