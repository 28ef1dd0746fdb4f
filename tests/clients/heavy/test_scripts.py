"""langchain-openai and litellm. Their requirements exclude ours, so they run in an environment of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import ClientServer
from tests.clients.heavy.scripts import needs_environment, run_script


@needs_environment
@pytest.mark.parametrize("script", ["langchain_client", "litellm_client"])
def test_the_script_succeeds(server: ClientServer, script: str, tmp_path: Path) -> None:
    run_script(f"{script}.py", server, tmp_path)
