"""Run a server process with the demo models, with or without a planted bug."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.chaos.dearest.measure import LAUNCHER, MeasuredServer, measured_server
from tests.e2e.conftest import COMMAND, RunningServer, serving

planted: str | None = None
"""Name of the bug that is planted in every server, or None. Set by `tests.chaos.one`."""


def command() -> tuple[str, ...]:
    """The command line that starts the product, with the bug `planted` if there is one."""
    return COMMAND if planted is None else (sys.executable, "-m", "tests.chaos.planted", planted, "--")


class StartFailed(Exception):
    """The server did not become ready, so that the check did not run."""


@contextmanager
def monitored_server(*arguments: str) -> Iterator[MeasuredServer]:
    """Context manager that yields a ready server whose event loop and memory are measured, and stops it at the end."""
    launcher = (LAUNCHER,) if planted is None else ("tests.chaos.planted", planted, "--monitored")
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        try:
            measured = stack.enter_context(
                measured_server(Path(directory), "--no-access-log", *arguments, launcher=launcher)
            )
        except AssertionError as error:
            raise StartFailed(str(error)) from None
        yield measured


@contextmanager
def server(*arguments: str) -> Iterator[RunningServer]:
    """Context manager that yields a ready server without an access log, and stops it at the end."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        try:
            running = stack.enter_context(
                serving(Path(directory) / "log", "--no-access-log", *arguments, command=command())
            )
        except AssertionError as error:
            raise StartFailed(str(error)) from None
        yield running
