"""Runs the curl commands of docs/requests.md that name a model which no demo model replaces."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

from tests.e2e.conftest import REPOSITORY


def answers(url: str, page_model: str, model: str) -> list[Any]:
    """The JSON answers to all commands with one model of the page.

    url: address of the server. page_model: name of the model on the page. model: its name on the server.
    """
    assert shutil.which("curl"), "the examples need curl"
    page = (REPOSITORY / "docs" / "requests.md").read_text()
    named = f'"model": "{page_model}"'
    found = []
    for command in re.findall(r"```shell\n(curl .*?)```", page, re.DOTALL):
        if named in command:
            own = command.replace(named, f'"model": "{model}"').replace("http://127.0.0.1:8000", url)
            own = own.replace("curl ", "curl --fail-with-body ", 1)
            done = subprocess.run(["bash", "-c", own], capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stdout
            found.append(json.loads(done.stdout))
    return found
