"""Fixtures: a server with a scripted model for all programs, and a function that runs a program's turns."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.agents.programs import NOTES, Program, script_of, scripts
from tests.agents.recorder import Exchange, recording
from tests.agents.running import Finished, Turn, run_command, run_driver
from tests.e2e.conftest import RunningServer, serving
from tests.scripted_model import cue_of, write_scripted


@dataclass(frozen=True)
class Taken:
    """A completed turn of a program: its output and report, and the HTTP requests with their answers."""

    finished: Finished
    exchanges: list[Exchange]


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


@pytest.fixture(scope="session")
def take(
    server: RunningServer, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Program, str, str], Taken]:
    """A function that runs a turn of a program and returns it.

    A driver runs all its turns in one process. The turns are stored, so that each driver is started only once.
    """
    kept: dict[tuple[str, str, str], Taken] = {}

    def turn_of(program: Program, name: str, mode: str) -> Turn:
        script = script_of(program, name)
        cue = cue_of(script, scripts(project)) if program.has_raw_prompts else ""
        return Turn(name, mode, f"[[script:{script}]] Find the secret word ({name}, {mode}).{cue}")

    def take_driver(program: Program) -> None:
        turns = [turn_of(program, name, mode) for name in program.turns for mode in program.modes]
        with recording(server.url) as recorder:
            finished = run_driver(program, turns, recorder.url, tmp_path_factory.mktemp(program.id))
        for turn, driven in zip(turns, finished, strict=True):
            # The text of the task tells which turn a request belongs to.
            own = [exchange for exchange in recorder.exchanges if f"({turn.name}, {turn.mode})" in str(exchange.body)]
            kept[program.id, turn.name, turn.mode] = Taken(driven, own)

    def take(program: Program, name: str, mode: str) -> Taken:
        if not program.driver:
            (project / "notes.txt").write_text(NOTES)
            with recording(server.url) as recorder:
                home = tmp_path_factory.mktemp(program.id)
                finished = run_command(program, turn_of(program, name, mode), recorder.url, home, project)
            return Taken(finished, recorder.exchanges)
        if (program.id, name, mode) not in kept:
            take_driver(program)
        return kept[program.id, name, mode]

    return take
