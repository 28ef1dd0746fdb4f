"""`LineProcess`, a child process that answers each line of input with a line, and how it is ended and replaced."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from server.system.line_process import LineProcess

ECHO = "import sys\nprint(flush=True)\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A script that answers each line with the reversed line."""
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    return path


def test_a_killed_process_is_replaced(file: Path) -> None:
    process = LineProcess(file)
    assert process.exchange(b"abc\n", 60) == b"cba\n"
    psutil.Process(process.pid).kill()
    assert process.exchange(b"abc\n", 60) in (b"", b"cba\n")
    assert process.exchange(b"abc\n", 60) == b"cba\n"
    process.stop()


def test_none_is_started_after_the_end(file: Path) -> None:
    process = LineProcess(file)
    process.exchange(b"abc\n", 60)
    child = psutil.Process(process.pid)
    process.kill()
    child.wait(60)
    with pytest.raises(TimeoutError, match="was stopped"):
        process.exchange(b"abc\n", 60)
    assert not child.is_running()


def test_none_is_started_where_the_end_comes_first(file: Path) -> None:
    process = LineProcess(file)
    process.kill()
    with pytest.raises(TimeoutError, match="was stopped"):
        process.exchange(b"abc\n", 60)


def test_a_slow_answer_is_told_from_a_process_that_was_stopped(tmp_path: Path) -> None:
    """An answer that takes too long is empty, because the request is to blame. A stopped process raises TimeoutError.

    In both cases, the process is replaced.
    """
    path = tmp_path / "busy.py"
    path.write_text(ECHO.replace(": print", ":\n while line == 'busy\\n': pass\n print"))
    process = LineProcess(path)
    assert process.exchange(b"busy\n", 1.0) == b""
    assert process.exchange(b"abc\n", 60) == b"cba\n"
    psutil.Process(process.pid).suspend()
    with pytest.raises(TimeoutError, match="did not work for 1 s, and was replaced"):
        process.exchange(b"abc\n", 1.0)
    process.stop()
