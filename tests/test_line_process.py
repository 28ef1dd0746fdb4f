"""`LineProcess`, a child process that answers each line of input with a line, and how it is ended and replaced."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from server.system.line_process import LineProcess
from tests.waiting import eventually, is_gone

REPOSITORY = Path(__file__).resolve().parents[1]

ECHO = "import sys\nprint(flush=True)\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A script that answers each line with the reversed line."""
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    return path


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    """The same, but it never answers the line `busy`, and the line `end` ends it."""
    path = tmp_path / "busy.py"
    path.write_text(ECHO.replace(": print", ":\n while line == 'busy\\n': pass\n if line == 'end\\n': break\n print"))
    return path


def test_a_killed_process_is_replaced(file: Path) -> None:
    process = LineProcess(file)
    assert process.exchange(b"abc\n", 60) == b"cba\n"
    psutil.Process(process.pid).kill()
    with contextlib.suppress(TimeoutError):  # unless its end is known already
        assert process.exchange(b"abc\n", 60) == b"cba\n"
    assert process.exchange(b"abc\n", 60) == b"cba\n"
    process.stop()


def test_a_process_that_something_else_kills_is_not_the_fault_of_the_request(busy: Path) -> None:
    """As Linux does for lack of memory. A process that ends by itself is: it has reached one of its own limits."""
    process = LineProcess(busy)
    process.exchange(b"abc\n", 60)
    killing = threading.Timer(0.5, psutil.Process(process.pid).kill)
    killing.start()
    with pytest.raises(TimeoutError, match="was killed, and was replaced"):
        process.exchange(b"busy\n", 60)
    assert process.exchange(b"abc\n", 60) == b"cba\n"
    assert process.exchange(b"end\n", 60) == b""
    process.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_process_at_work_ends_with_its_parent(busy: Path) -> None:
    """Its standard input is closed too, but it does not look at it while it works."""
    code = (
        "import sys, threading; from pathlib import Path; from server.system.line_process import LineProcess\n"
        f"process = LineProcess(Path({str(busy)!r})); process.exchange(b'abc\\n', 60)\n"
        "print(process.pid, flush=True); process.exchange(b'busy\\n', 600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=REPOSITORY)
    try:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        eventually(lambda: child.cpu_times().user > 0.3)
    finally:
        parent.kill()
        parent.wait()
    eventually(lambda: is_gone(child))


@pytest.mark.skipif(sys.platform != "linux", reason="a file of Linux")
def test_a_process_is_killed_before_the_server_for_lack_of_memory(file: Path) -> None:
    process = LineProcess(file)
    process.exchange(b"abc\n", 60)
    own, its = (int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in ("self", process.pid))
    assert its == min(own + 300, 1000)
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


def test_a_slow_answer_is_told_from_a_process_that_was_stopped(busy: Path) -> None:
    """The first is the fault of the request, the second is not. The process is replaced after both."""
    process = LineProcess(busy)
    assert process.exchange(b"busy\n", 1.0) == b""
    assert process.exchange(b"abc\n", 60) == b"cba\n"
    psutil.Process(process.pid).suspend()
    with pytest.raises(TimeoutError, match="did not work for 1 s, and was replaced"):
        process.exchange(b"abc\n", 1.0)
    process.stop()
