"""A program whose standard output is closed or full goes on, says so in at most one line, and opens no socket there."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHOW = """
import logging
logging.basicConfig(format="%(message)s")
from server.system.output import open_closed_files, show
open_closed_files()
show("one")
show("two")
"""


@pytest.mark.parametrize(
    ("redirection", "shown", "said"),
    [
        ("", "one\ntwo\n", ""),
        (
            ">/dev/full",
            "",
            "cannot write to standard output (No space left on device): nothing more is written there\n",
        ),
        (">&-", "", ""),
        ("2>/dev/full", "one\ntwo\n", ""),
        ("<&- >&- 2>&-", "", ""),
    ],
)
def test_a_text_is_shown_or_one_line_says_why_not(redirection: str, shown: str, said: str) -> None:
    done = _run(f'"$0" -c "$1" {redirection}', SHOW)
    assert (done.returncode, done.stdout, done.stderr) == (0, shown, said)


def test_closed_files_are_opened_so_that_no_socket_takes_their_place() -> None:
    code = """
import os, socket
from server.system.output import open_closed_files
open_closed_files()
one = socket.socket()
raise SystemExit(0 if one.fileno() > 2 else 1)
"""
    assert _run('"$0" -c "$1" <&- >&- 2>&-', code).returncode == 0


def _run(command: str, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command, sys.executable, code], capture_output=True, text=True, check=False)
