"""The Python example of docs/first-hour.md runs as it stands, on the demo models; other commands are run or marked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import REPOSITORY, serving


def test_the_batch_example_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "first-hour.md").read_text(), re.DOTALL)
    # Fewer sentences, still more than fit one list.
    block = block.replace("range(5000)", "range(1500)")
    names: dict[str, Any] = {}
    with serving(tmp_path / "log") as server:
        exec(block.replace("http://127.0.0.1:8000", server.url), names)
    assert len(names["vectors"]) == 1500 and len(names["translations"]) == 500
    assert {translation["text"] for translation in names["translations"]} == {"Je suis un étudiant"}


@pytest.mark.parametrize("page", ["first-hour.md", "troubleshooting.md"])
def test_every_command_is_run_or_marked(page: str) -> None:
    """`test_jobs.py` runs the curl commands of `console` blocks. A block of other commands says why it is not run."""
    text = (REPOSITORY / "docs" / page).read_text()
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        commands = block.replace("\\\n", " ").strip().splitlines()
        assert all(command.startswith("curl ") for command in commands if command)
    others = re.findall(r"(.*)\n```(?:sh|shell|bash)\n", text)
    assert all(before.startswith("<!-- not run: ") for before in others)
