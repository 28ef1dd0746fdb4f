"""Measure the steps of Triptych in detail: by context length and by operation. Each measurement runs in a process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

from benchmarks import workloads
from benchmarks.measure import Options, Results
from benchmarks.plan import PRECISIONS
from benchmarks.process import REPOSITORY

SECTIONS = ("context", "profile")


def run(sections: list[str], options: Options, results: Results, say: Callable[[str], None]) -> None:
    """Run the selected measurements. If one fails, its error is printed, and the result page omits it.

    sections: names from `SECTIONS`.
    """
    tiny = options.scale is workloads.TINY
    directory = str(options.checkpoints / options.detailed_shape)
    commands = {"context": ["--checkpoint", directory, "--precisions", *PRECISIONS]}
    commands["profile"] = ["--json", "--checkpoints", str(options.checkpoints)]
    small = {"context": ["--steps", "2", "--longest", "128"], "profile": ["--tiny"]}
    for name in sections:
        say(f"{name} of {options.detailed_shape}")
        arguments = [*commands[name], "--threads", str(options.threads), *(small[name] if tiny else [])]
        results.sections[name] = _measured(name, [options.python, "-m", f"benchmarks.{name}", *arguments], say)
        results.write()


def _measured(name: str, command: list[str], say: Callable[[str], None]) -> list[dict[str, Any]]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    if done.returncode:
        say(f"  {name} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        return []
    return list(json.loads(done.stdout))
