"""Run the curl commands of docs/requests.md that need another model than the demo models."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from tests.documented_commands import shell_blocks


def answers(url: str, page_model: str, model: str) -> list[Any]:
    """Run all commands of docs/requests.md with a certain model. Returns their JSON answers.

    url: address of the server. page_model: name of the model on the page.
    model: name of the server's model that replaces it.
    """
    assert shutil.which("curl"), "the examples need curl"
    named = f'"model": "{page_model}"'
    found = []
    blocks = [block for block in shell_blocks() if block.page == "docs/requests.md" and block.mark == "run by"]
    for command in (command for block in blocks for command in block.commands):
        if named in command:
            own = command.replace(named, f'"model": "{model}"').replace("http://127.0.0.1:8000", url)
            own = own.replace("curl ", "curl --fail-with-body ", 1)
            done = subprocess.run(["bash", "-c", own], capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stdout
            found.append(json.loads(done.stdout))
    return found
