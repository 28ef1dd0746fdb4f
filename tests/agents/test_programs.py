"""Each program, unmodified and with its default settings, takes its turns with the scripted model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agents import recorded
from tests.agents.conftest import Taken
from tests.agents.programs import ANSWER, EDITED, PROGRAMS, Program, script_of, scripts
from tests.agents.running import is_installed

pytestmark = pytest.mark.skipif(not is_installed(), reason="make test-agents creates the environments")

INSTALLED = [program for program in PROGRAMS if not program.is_recorded]
TURNS = [(program, turn, mode) for program in INSTALLED for turn in program.turns for mode in program.modes]
_PROBES = ("/api/hello",)
"""Paths of requests that may fail, because the program continues without an answer."""


@pytest.mark.parametrize(
    ("program", "turn", "mode"), TURNS, ids=[f"{program.id}-{turn}-{mode}" for program, turn, mode in TURNS]
)
def test_turn(
    program: Program,
    turn: str,
    mode: str,
    take: Callable[[Program, str, str], Taken],
    project: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    taken = take(program, turn, mode)
    finished, report = taken.finished, taken.finished.report
    for exchange in taken.exchanges:
        print(exchange)
    refused = [str(seen) for seen in taken.exchanges if seen.status >= 400 and seen.path not in _PROBES]
    assert not refused
    assert finished.code == 0, finished.output[-4000:]
    steps = scripts(project)[script_of(program, turn)]
    if turn == "edit":
        assert (project / "notes.txt").read_text() == EDITED
    elif not program.driver:
        assert (ANSWER if turn == "tools" else steps[-1].content) in finished.output
    else:
        assert report is not None, finished.output[-4000:]
        assert "error" not in report, report["error"]
        calls = [[call.name, dict(call.arguments)] for step in steps for call in step.calls]
        ending = calls.pop()[1]["answer"] if calls and calls[-1][0] == "final_answer" else steps[-1].content
        assert report["text"].strip() == (ANSWER if turn == "code" else ending)
        assert report["calls"] == calls
        if turn == "reasoning" and report["reasoning"] is not None:
            assert report["reasoning"].strip() == steps[-1].reasoning
    if os.environ.get("RECORD_REQUESTS"):
        private = {str(project): str(recorded.PROJECT), str(tmp_path_factory.getbasetemp()): "/home"}
        recorded.record(program.id, f"{turn}-{mode}", taken.exchanges, private)
