"""A server process with the demo models, with or without a planted bug."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.conftest import COMMAND, RunningServer, serving

planted: str | None = None
"""Name of the bug that every server gets. Set by `tests.chaos.one`."""


def command() -> tuple[str, ...]:
    """The command line of the product, or of the product with a planted bug."""
    return COMMAND if planted is None else (sys.executable, "-m", "tests.chaos.planted", planted, "--")


@contextmanager
def server(*arguments: str) -> Iterator[RunningServer]:
    """A ready server without access log; it stops at the end of the block."""
    with (
        tempfile.TemporaryDirectory() as directory,
        serving(Path(directory) / "log", "--no-access-log", *arguments, command=command()) as running,
    ):
        yield running
