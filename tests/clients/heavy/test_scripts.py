"""langchain-openai and litellm work. They run in a separate environment, because their requirements exclude ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clients.conftest import ClientServer
from tests.clients.heavy.scripts import EXAMPLES, HERE, needs_environment, run_script


@needs_environment
@pytest.mark.parametrize("script", ["langchain_client", "litellm_client"])
def test_the_script_succeeds(server: ClientServer, script: str, tmp_path: Path) -> None:
    run_script(HERE / f"{script}.py", server, tmp_path)


@needs_environment
@pytest.mark.parametrize("script", ["langchain_chat", "litellm_chat"])
def test_the_example_runs(server: ClientServer, script: str, tmp_path: Path) -> None:
    printed = run_script(EXAMPLES / f"{script}.py", server, tmp_path)
    assert re.match(r"answer: .+\nstreamed: .+\n$", printed, re.DOTALL), printed
