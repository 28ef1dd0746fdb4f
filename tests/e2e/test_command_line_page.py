"""Every `console` example in docs/command-line.md runs on the demo models."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.e2e.conftest import REPOSITORY, RunningServer

PAGE = (REPOSITORY / "docs" / "command-line.md").read_text()


def test_the_examples_run(demo_server: RunningServer, tmp_path: Path) -> None:
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    environment = os.environ | {"TRIPTYCH_URL": demo_server.url, "PYTHONPATH": str(REPOSITORY)}
    # Exit status 3 means that the answer reached `--max-new-tokens`, which is expected in these examples.
    command = f'"{sys.executable}" -m server.cli "$@" || [ $? -eq 3 ]'
    define = f"set -e -o pipefail\ntriptych() {{ {command}; }}\n"
    done = subprocess.run(
        ["bash"],
        input=define + "\n".join(blocks),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert shown[2] in ("cat", "dog", "fox") and shown[3] == "Je suis un étudiant" and shown[4].startswith("POSITIVE\t")
    assert (tmp_path / "french.txt").read_text() == "Je suis un étudiant\nLe jardin est petit.\n"
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [(answer["line"], answer.get("id")) for answer in answers] == [(1, None), (2, "man"), (3, "fox")]
    assert answers[1]["answer"]["usage"]["completion_tokens"] <= 8
    assert "answers.jsonl is complete: 3 answers" in done.stderr
    assert ElementTree.parse(tmp_path / "load.svg").getroot().tag.endswith("svg")
    assert json.loads((tmp_path / "results.json").read_text())["levels"][0]["errors"] == {}


def test_the_page_names_every_command() -> None:
    from server.cli import COMMANDS

    assert set(COMMANDS) <= set(re.findall(r"`(\w+)`", PAGE))
