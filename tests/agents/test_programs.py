"""Each program, unmodified and with its default settings, takes its turns with the scripted model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.programs import ANSWER, EDITED, NOTES, PROGRAMS, Program, script_of, scripts
from tests.agents.recorder import Recorder
from tests.agents.running import is_installed, run_program

pytestmark = pytest.mark.skipif(not is_installed(), reason="make test-agents creates the environments")

TURNS = [(program, turn, mode) for program in PROGRAMS for turn in program.turns for mode in program.modes]
TASK = "Find the secret word."
_PROBES = ("/api/hello",)
"""Requests that need no answer: the program goes on without one."""


@pytest.mark.parametrize(
    ("program", "turn", "mode"), TURNS, ids=[f"{program.id}-{turn}-{mode}" for program, turn, mode in TURNS]
)
def test_turn(program: Program, turn: str, mode: str, recorder: Recorder, project: Path, tmp_path: Path) -> None:
    script = script_of(program, turn)
    (project / "notes.txt").write_text(NOTES)
    done = run_program(program, turn, mode, f"[[script:{script}]] {TASK}", recorder.url, tmp_path, project)

    refused = [one for one in recorder.exchanges if one.status >= 400 and one.path not in _PROBES]
    assert not refused, refused
    assert done.code == 0, done.output[-4000:]
    steps = scripts(project)[script]
    if turn == "edit":
        assert (project / "notes.txt").read_text() == EDITED
        return
    expected = ANSWER if turn == "code" or (not program.driver and turn == "tools") else steps[-1].content
    if program.section == "smolagents" and turn == "tools":
        expected = str(steps[-1].calls[0].arguments["answer"])
    assert expected in done.text if done.report is None else done.text.strip() == expected
    if done.report is not None:
        calls = [[call.name, dict(call.arguments)] for step in steps for call in step.calls]
        made = [call for call in calls if call[0] != "final_answer"]
        assert done.report["calls"] == (made if turn in ("tools", "types") else [])
        if done.report["reasoning"] is not None:
            assert done.report["reasoning"].strip() == steps[-1].reasoning
