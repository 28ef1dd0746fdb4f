"""The contests themselves: everyone loaded, one at work at a time, in turn, round after round.

Figures are written after every run, so that a run that is interrupted has told what it knew.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine, workloads
from benchmarks.contestants import OURS
from benchmarks.contestants.contract import Subject
from benchmarks.plan import Contest
from benchmarks.process import ContestantProcess, Failed

LOAD_SECONDS = 600.0
READING = "A"
"""The workload whose limit is how fast memory is read."""


@dataclass
class Options:
    """How to measure. rounds: of each workload, at least one; fewer when `budget_seconds` is nearly gone.

    python, peers: interpreters of our environment and theirs. grown: the shape whose steps are looked at in detail.
    run_seconds: how long one run may take; who takes longer is stopped, and that is told.
    """

    checkpoints: Path
    python: str
    peers: str | None
    threads: int
    rounds: int
    budget_seconds: float
    scale: workloads.Scale
    grown: str = "llama-135m"
    run_seconds: float = 300.0
    programs: dict[str, str] = field(default_factory=dict)


@dataclass
class Results:
    """Everything that was measured, and the file it is kept in.

    entries: by (shape, precision, workload, contestant): `runs` of it, or `error`. loads: what each contestant said
    when it had loaded a model, by (shape, precision, contestant).
    """

    path: Path
    about: dict[str, Any]
    entries: list[dict[str, Any]] = field(default_factory=list)
    loads: list[dict[str, Any]] = field(default_factory=list)
    sections: dict[str, Any] = field(default_factory=dict)

    def entry(self, contest: Contest, workload: str, contestant: str) -> dict[str, Any]:
        key = {"shape": contest.shape, "precision": contest.precision}
        key |= {"workload": workload, "contestant": contestant}
        for known in self.entries:
            if all(known[name] == value for name, value in key.items()):
                return known
        self.entries.append({**key, "runs": []})
        return self.entries[-1]

    def take_over(self) -> None:
        """What the file holds already; a contest that is run again replaces its entries."""
        if self.path.exists():
            content = json.loads(self.path.read_text())
            self.entries, self.loads = content["entries"], content["loads"]
            self.sections = content["sections"]

    def forget(self, contest: Contest) -> None:
        """All entries of a contest that begins."""
        key = (contest.shape, contest.precision)
        self.entries = [
            entry
            for entry in self.entries
            if (entry["shape"], entry["precision"]) != key or entry["workload"] not in contest.workloads
        ]

    def write(self) -> None:
        """All of it, in one step."""
        content = {"about": self.about, "entries": self.entries, "loads": self.loads, "sections": self.sections}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1))
        partial.replace(self.path)


def run(contests: list[Contest], options: Options, results: Results, say: Callable[[str], None]) -> None:
    """All contests, each with its share of the time that is left."""
    ends = time.monotonic() + options.budget_seconds
    for number, contest in enumerate(contests):
        results.forget(contest)
        left = ends - time.monotonic()
        share = left / (len(contests) - number)
        if left <= 0:
            _note_all(contest, results, "not run: the time was over")
            continue
        say(f"{contest.name}: {', '.join(contest.workloads)} ({share:.0f} s)")
        _contest(contest, options, results, share, say)
    results.write()


def _contest(contest: Contest, options: Options, results: Results, seconds: float, say: Callable[[str], None]) -> None:
    """Load everyone, then rounds for so many seconds, and one round in any case."""
    processes = _load(contest, options, results, say)
    ends = time.monotonic() + seconds
    try:
        warmed: set[tuple[str, str]] = set()
        for number in range(options.rounds):
            for workload in contest.workloads:
                if workload == "start" and number:
                    continue
                work = workloads.job(workload, contest.shape, options.scale, seed=number + 1)
                for name in [name for name in processes if contest.takes_part(name, workload)]:
                    if number and time.monotonic() > ends:
                        continue
                    entry = results.entry(contest, workload, name)
                    if "error" in entry:
                        continue
                    try:
                        if (name, workload) not in warmed:
                            _warm_up(processes[name], workload, contest, options)
                            warmed.add((name, workload))
                        ask = functools.partial(_ask, processes[name], work, options.run_seconds)
                        outcome = _beside_reading(ask) if workload == READING else ask()
                    except Failed as error:
                        entry["error"] = str(error)
                        say(f"  {workload:10} {name:22} {error}")
                    else:
                        outcome["units"] = work.units
                        entry["runs"].append(outcome)
                        say(f"  {workload:10} {name:22} {work.units / outcome['seconds']:8.1f} /s")
                    results.write()
    finally:
        for process in processes.values():
            process.close()


def _load(
    contest: Contest, options: Options, results: Results, say: Callable[[str], None]
) -> dict[str, ContestantProcess]:
    """Everyone who can be loaded, one after the other: some convert their model first, on all cores."""
    processes: dict[str, ContestantProcess] = {}
    for name in contest.contestants:
        if not any(contest.takes_part(name, workload) for workload in contest.workloads):
            continue
        python = options.python if name in OURS else options.peers
        program = options.programs.get(name)
        made = options.checkpoints / "made" / contest.shape
        made.mkdir(parents=True, exist_ok=True)
        directory = str(options.checkpoints / contest.shape)
        subject = Subject(contest.shape, contest.precision, directory, str(made), options.threads, program)
        process = None
        try:
            if python is None:
                raise Failed("not run: no environment with peers was given")
            process = ContestantProcess(name, python, options.threads)
            process.send({"load": vars(subject)})
            found = process.receive(LOAD_SECONDS)
        except Failed as error:
            say(f"  {'load':10} {name:22} {error}")
            for workload in contest.workloads:
                if contest.takes_part(name, workload):
                    results.entry(contest, workload, name)["error"] = str(error)
            if process is not None:
                process.close()
        else:
            processes[name] = process
            key = {"shape": contest.shape, "precision": contest.precision, "contestant": name}
            results.loads = [load for load in results.loads if any(load[one] != key[one] for one in key)]
            results.loads.append({**key, **found})
        results.write()
    return processes


def _warm_up(process: ContestantProcess, workload: str, contest: Contest, options: Options) -> None:
    """The same kind of work, in short: what is allocated or compiled at first use has been, before it counts."""
    if workload == "start":
        return
    work = workloads.job(workload, contest.shape, options.scale, seed=0)
    process.send({"job": vars(workloads.shortened(work))})
    process.receive(options.run_seconds)


def _ask(process: ContestantProcess, work: workloads.Job, seconds: float) -> dict[str, Any]:
    """One run. Raises Failed also for an answer that is not as long as asked for."""
    process.send({"job": vars(work)})
    outcome = process.receive(seconds)
    if work.kind == "embed":
        made, wanted = outcome["texts"], len(work.inputs)
    else:
        made, wanted = outcome["tokens"], sum(work.new_tokens)
    if made != wanted:
        raise Failed(f"made {made} of {wanted} {'texts' if work.kind == 'embed' else 'tokens'}")
    return outcome


def _beside_reading(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """One run, and `read_bytes_per_second`: what memory gave just before and after it."""
    before = machine.usual_bandwidth()
    outcome = ask()
    outcome["read_bytes_per_second"] = (before + machine.usual_bandwidth()) / 2
    return outcome


def _note_all(contest: Contest, results: Results, reason: str) -> None:
    for workload in contest.workloads:
        for name in contest.contestants:
            if contest.takes_part(name, workload):
                results.entry(contest, workload, name)["error"] = reason
