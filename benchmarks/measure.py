"""The contests themselves: everyone loaded, one at work at a time, in turn, round after round.

The workloads of a contest share its time, so that short ones have more rounds: what the machine does from second to
second then cancels out. Figures are written after every run: a run that is interrupted has told what it knew.
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

FAR_BEHIND = 0.5
"""Of the best peer's rate: who has less is asked once, and the time is better spent on those who are near."""


@dataclass
class Options:
    """How to measure. rounds: of each workload, at most; one in any case, more while `budget_seconds` last.

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


@dataclass
class Turns:
    """How often a workload had its turn, how long that took in all, and how long the last time; in seconds."""

    rounds: int = 0
    seconds: float = 0.0
    last: float = 0.0


def run(contests: list[Contest], options: Options, results: Results, say: Callable[[str], None]) -> None:
    """All contests; the time that is left is shared by the number of their workloads."""
    ends = time.monotonic() + options.budget_seconds
    for number, contest in enumerate(contests):
        results.forget(contest)
        left = ends - time.monotonic()
        share = left * len(contest.workloads) / sum(len(one.workloads) for one in contests[number:])
        if left <= 0:
            _note_all(contest, results, "not run: the time was over")
            continue
        say(f"{contest.name}: {', '.join(contest.workloads)} ({share:.0f} s)")
        _contest(contest, options, results, share, say)
    results.write()


def next_workload(turns: dict[str, Turns], rounds: int, seconds: float) -> str | None:
    """Whose turn it is: of those that had fewer than `rounds` and would end in `seconds`, the one that had least time.

    Everyone has a first one.
    """
    waiting = [name for name, had in turns.items() if had.rounds < (1 if name == "start" else rounds)]
    waiting = [name for name in waiting if not turns[name].rounds or turns[name].last <= seconds]
    return min(waiting, key=lambda name: (turns[name].rounds > 0, turns[name].seconds), default=None)


def _contest(contest: Contest, options: Options, results: Results, seconds: float, say: Callable[[str], None]) -> None:
    """Load everyone, then rounds for so many seconds, and one of each workload in any case."""
    processes = _load(contest, options, results, say)
    loaded = _Loaded(contest, processes, options, results, say)
    ends = time.monotonic() + seconds
    turns = {workload: Turns() for workload in contest.workloads}
    try:
        while (workload := next_workload(turns, options.rounds, ends - time.monotonic())) is not None:
            started, had = time.monotonic(), turns[workload]
            loaded.round(workload, had.rounds)
            took = time.monotonic() - started
            turns[workload] = Turns(had.rounds + 1, had.seconds + took, took)
    finally:
        for process in processes.values():
            process.close()


@dataclass(frozen=True)
class _Loaded:
    """A contest whose contestants wait to be asked."""

    contest: Contest
    processes: dict[str, ContestantProcess]
    options: Options
    results: Results
    say: Callable[[str], None]

    def round(self, workload: str, number: int) -> None:
        """One run by everyone who takes part, has not failed, and is not far behind; number: 0 for the first."""
        work = workloads.job(workload, self.contest.shape, self.options.scale, seed=number + 1)
        names = [name for name in self.processes if self.contest.takes_part(name, workload)]
        entries = {name: self.results.entry(self.contest, workload, name) for name in names}
        for name in worth_asking(entries) if number else names:
            if "error" in entries[name]:
                continue
            try:
                outcome = self._run(name, work, workload, is_first=number == 0)
            except Failed as error:
                entries[name]["error"] = str(error)
                self.say(f"  {workload:10} {name:22} {error}")
            else:
                entries[name]["runs"].append(outcome | {"units": work.units})
                self.say(f"  {workload:10} {name:22} {work.units / outcome['seconds']:8.1f} /s")
            self.results.write()

    def _run(self, name: str, work: workloads.Job, workload: str, is_first: bool) -> dict[str, Any]:
        process, limit = self.processes[name], self.options.run_seconds
        if is_first and workload != "start":
            _warm_up(process, workload, self.contest, self.options)
        ask = functools.partial(_ask, process, work, limit)
        return _beside_reading(ask) if workload == READING else ask()


def worth_asking(entries: dict[str, dict[str, Any]]) -> list[str]:
    """Ourselves, and the peers that the first round did not show to be far behind the best of them."""
    rates = {
        name: entry["runs"][0]["units"] / entry["runs"][0]["seconds"]
        for name, entry in entries.items()
        if name not in OURS and entry["runs"]
    }
    limit = FAR_BEHIND * max(rates.values(), default=0.0)
    return [name for name in entries if name in OURS or rates.get(name, 0.0) >= limit]


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
