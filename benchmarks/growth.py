"""Measure the time of Triptych's steps by context length and by operation. Each measurement has its own process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import workloads
from benchmarks.measure import Options, Results
from benchmarks.plan import PRECISIONS, PROFILED, Contest
from benchmarks.process import REPOSITORY

SECTIONS = ("context", "profile")


def run(
    sections: list[str], contests: list[Contest], options: Options, results: Results, say: Callable[[str], None]
) -> None:
    """Measure the selected sections of the result page, and store them in `results`.

    A measurement that fails is reported with `say`, and is missing on the page.

    sections: names from `SECTIONS`. contests: models and precisions for the section `profile`.
    """
    for name in sections:
        found: list[dict[str, Any]] = []
        for what, arguments in _measurements(name, contests, options):
            say(f"{name} of {what}")
            command = [options.python, "-m", f"benchmarks.{name}", *arguments, "--threads", str(options.threads)]
            found += _measured(command, say)
        results.sections[name] = found
        results.write()


def _measurements(name: str, contests: list[Contest], options: Options) -> Iterator[tuple[str, list[str]]]:
    """Yield a label and the command-line arguments of each measurement process."""
    tiny = options.scale is workloads.TINY
    if name == "context":
        directory = str(options.checkpoints / options.detailed_shape)
        small = ["--steps", "2", "--longest", "128"] if tiny else []
        yield options.detailed_shape, ["--checkpoint", directory, "--precisions", *PRECISIONS, *small]
    elif tiny:
        yield "tiny models", ["--json", "--checkpoints", str(options.checkpoints), "--tiny"]
    else:
        # Each model and precision has its own process, because several models would not fit into memory together.
        for contest in contests:
            prefix = f"{contest.shape}/{contest.precision}"
            only = [f"{prefix}/{workload}" for workload in contest.workloads if workload in PROFILED]
            if only:
                yield contest.name, ["--json", "--checkpoints", str(options.checkpoints), "--only", *only]


def _measured(command: list[str], say: Callable[[str], None]) -> list[dict[str, Any]]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]
        say(f"  failed: {last_line}")
        return []
    return list(json.loads(done.stdout))
