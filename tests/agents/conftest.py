"""A server with the scripted model for all programs, and a recorder and a project for each test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.programs import NOTES, scripts
from tests.agents.recorder import Recorder, recording
from tests.e2e.conftest import RunningServer, serving
from tests.scripted_model import write_scripted


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the coding agents work: a repository with one file."""
    directory = tmp_path_factory.mktemp("project")
    (directory / "notes.txt").write_text(NOTES)
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "Add notes"]):
        subprocess.run(["git", *command], cwd=directory, check=True)
    return directory


@pytest.fixture(scope="session")
def server(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("scripted")
    model = write_scripted(directory / "model", scripts(project))
    with serving(directory / "log", f"scripted={model}") as running:
        yield running


@pytest.fixture
def recorder(server: RunningServer) -> Iterator[Recorder]:
    with recording(server.url) as one:
        yield one
        for exchange in one.exchanges:
            print(exchange)
