"""The command line in a pseudo-terminal: colours, width of tables, and a conversation."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fcntl import ioctl
from struct import pack
from termios import TIOCSWINSZ

import psutil
import pytest

from tests.client.fake_server import Reply, fake_server
from tests.client.test_chat import PAGES, says
from tests.e2e.conftest import REPOSITORY
from tests.waiting import HANG_SECONDS, eventually

ESCAPE = "\x1b["


class Terminal:
    """A command in a pseudo-terminal. output: everything that it has printed so far."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.output = ""
        self._descriptor = descriptor

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def wait_for(self, pattern: str) -> str:
        """Read until the output matches a regular expression. Returns the whole output."""
        while not re.search(pattern, self.output):
            assert self._read(), f"the command ended without {pattern!r}: {self.output!r}"
        return self.output

    def end(self) -> int:
        """Read until the command ends. Returns its exit status."""
        while self._read():
            pass
        return self.process.wait(HANG_SECONDS)

    def _read(self) -> bool:
        assert select.select([self._descriptor], [], [], HANG_SECONDS)[0], self.output
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # Linux reports the end of a terminal as an error
            return False
        self.output += data.decode()
        return bool(data)


def _heed_interrupts() -> None:
    """Set the default action for SIGINT.

    If the tests run in the background of a shell, children would ignore SIGINT.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def terminal(*argv: str, columns: int = 80, environment: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """Run a `triptych` command in a terminal of this width."""
    outer, inner = pty.openpty()
    ioctl(inner, TIOCSWINSZ, pack("HHHH", 24, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TRIPTYCH_", "NO_COLOR"))}
    clean |= {"TERM": "xterm"} | dict(environment or {})
    clean.pop("COLUMNS", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "server.cli", *argv],
        cwd=REPOSITORY,
        env=clean,
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
        preexec_fn=_heed_interrupts,
    )
    os.close(inner)
    try:
        yield Terminal(process, outer)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(outer)


def test_a_conversation_in_a_terminal() -> None:
    def answer(request) -> Reply:
        return says("Hel", "lo") if request.body is not None else Reply(PAGES[request.path])

    with fake_server(answer) as server, terminal("chat", "--url", server.url) as shell:
        shown = shell.wait_for("> ")
        assert f"story on {server.url}" in shown and ESCAPE in shown
        shell.type("hi\r")
        shell.wait_for(r"Hello\r\n.*2 tokens, ")
        shell.type("/retry\r")
        shell.wait_for(r"(?s)Hello.*Hello.*tokens.*> ")
        shell.type("\x04")
        assert shell.end() == 0


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_where_they_are_not_wanted(environment: Mapping[str, str]) -> None:
    with terminal("sevre", environment=environment) as shell:
        assert shell.end() == 2
    assert ESCAPE not in shell.output and "did you mean serve?" in shell.output


def test_an_error_has_a_colour_in_a_terminal() -> None:
    with terminal("sevre") as shell:
        assert shell.end() == 2
    assert shell.output.startswith(f"{ESCAPE}1;31mtriptych:{ESCAPE}0m 'sevre' is not a command; did you mean serve?")


def test_ctrl_c_at_the_prompt_does_not_end_the_conversation() -> None:
    pages = fake_server(lambda request: Reply(PAGES[request.path]))
    with pages as server, terminal("chat", "--url", server.url) as shell:
        shell.wait_for("> ")
        # Readline handles a signal only while it waits for a key, which it begins shortly after printing the prompt.
        eventually(lambda: psutil.Process(shell.process.pid).status() == psutil.STATUS_SLEEPING)
        os.kill(shell.process.pid, signal.SIGINT)
        shell.wait_for(r"(?s)> .*> ")
        shell.type("/exit\r")
        assert shell.end() == 0


@pytest.mark.parametrize("columns", [44, 100])
def test_tables_fit_the_terminal(columns: int) -> None:
    with terminal("models", columns=columns) as shell:
        assert shell.end() == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", shell.output).splitlines()
    assert "BertForMaskedLM" in shell.output and len(lines) > 100
    assert max(map(len, lines)) <= columns


INTERRUPTED = """
import os, signal
import server.cli as cli
def fill(parser):
    os.kill(os.getpid(), signal.SIGINT)
cli.COMMANDS["models"] = ("stand-in", fill)
cli.main(["models"])
"""


def test_an_interrupt_during_the_imports_of_a_command_shows_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=REPOSITORY, capture_output=True, preexec_fn=_heed_interrupts
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_an_ignored_interrupt_stays_ignored() -> None:
    """A command that was started with SIGINT ignored, as in the background of a script, keeps ignoring it."""
    ignore = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    code = INTERRUPTED.replace("SIGINT)", "SIGINT)\n    raise SystemExit(9)")
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, **ignore)
    assert (done.returncode, done.stderr) == (9, b"")
