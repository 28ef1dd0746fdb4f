"""Run the contests: all contestants load the model, then run the workloads in rounds.

In a round of a workload, all contestants run it one after the other. The workloads of a contest share its time equally,
so a short workload has more rounds. Many rounds cancel out short disturbances.
Results are written after every run, so that an interrupted benchmark keeps its results.
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
from benchmarks.contestants import IN_OUR_ENVIRONMENT, OURS
from benchmarks.contestants.contract import Subject
from benchmarks.plan import Contest
from benchmarks.process import ContestantProcess, Failed

LOAD_SECONDS = 600.0
BANDWIDTH_WORKLOAD = "A"
"""Workload whose speed is limited by the memory read bandwidth, which is measured before and after each of its runs."""

MIN_PEER_RATE = 0.5
"""Peers below this share of the best peer's rate in the first round are not run again, to save time."""


@dataclass
class Options:
    """Settings of one run of `python -m benchmarks`.

    checkpoints: directory of the models.
    python: Python interpreter of Triptych's environment. peers: that of the peers' environment, or None.
    threads: number of threads of each contestant.
    rounds: largest number of rounds per workload. The first round always runs; further ones run within the budget.
    budget_seconds: time for all contests.
    scale: size of the workloads.
    detailed_shape: shape whose steps `benchmarks.growth` measures in detail.
    run_seconds: longest duration of one run. A contestant that takes longer is stopped and reported.
    programs: path of the executable or library, for each contestant that needs one.
    isa: name of the instruction set of Triptych's kernels; None for the best one.
    """

    checkpoints: Path
    python: str
    peers: str | None
    threads: int
    rounds: int
    budget_seconds: float
    scale: workloads.Scale
    detailed_shape: str = "llama-135m"
    run_seconds: float = 300.0
    programs: dict[str, str] = field(default_factory=dict)
    isa: str | None = None


@dataclass
class Results:
    """All results, and the file that contains them.

    path: path of the file.
    about: description of the machine, versions and scale.
    entries: one per shape, precision, workload and contestant. `runs` has its outcomes, and `error` the reason if it
        failed.
    loads: one per shape, precision and contestant, with the properties of the loaded model.
    sections: results of `benchmarks.growth`, by section.
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

    def read(self) -> None:
        """Read the results of an earlier run from the file, if it exists.

        Raises ValueError if they are of another processor: a page describes one machine, which all its rows share.
        """
        if self.path.exists():
            content = json.loads(self.path.read_text())
            earlier, here = content["about"].get("processor"), self.about.get("processor")
            if earlier != here:
                raise ValueError(f"{self.path} has results of {earlier}, this is {here}: use --out for another page")
            self.entries, self.loads = content["entries"], content["loads"]
            self.sections = content["sections"]

    def forget(self, contest: Contest) -> None:
        """Remove the entries of a contest's workloads."""
        key = (contest.shape, contest.precision)
        self.entries = [
            entry
            for entry in self.entries
            if (entry["shape"], entry["precision"]) != key or entry["workload"] not in contest.workloads
        ]

    def write(self) -> None:
        """Write the file atomically."""
        content = {"about": self.about, "entries": self.entries, "loads": self.loads, "sections": self.sections}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1))
        partial.replace(self.path)


@dataclass
class Turns:
    """Rounds of one workload so far.

    rounds: number of rounds.
    seconds: duration of all rounds together. last: duration of the latest round, in seconds.
    """

    rounds: int = 0
    seconds: float = 0.0
    last: float = 0.0


def run(contests: list[Contest], options: Options, results: Results, say: Callable[[str], None]) -> None:
    """Run all contests, and store their results.

    Each contest gets a share of the remaining time in proportion to its number of workloads. Contests for which no time
    is left are marked as not run.

    say: prints a line of progress.
    """
    ends = time.monotonic() + options.budget_seconds
    for number, contest in enumerate(contests):
        results.forget(contest)
        left = ends - time.monotonic()
        share = left * len(contest.workloads) / sum(len(later.workloads) for later in contests[number:])
        if left <= 0:
            _note_all(contest, results, "not run: the time budget was used up")
            continue
        say(f"{contest.name}: {', '.join(contest.workloads)} ({share:.0f} s)")
        _contest(contest, options, results, share, say)
    results.write()


def next_workload(turns: dict[str, Turns], rounds: int, seconds: float) -> str | None:
    """The workload to run next, or None if none is left.

    Candidates are the workloads with fewer than `rounds` rounds whose last round took at most `seconds`. The one that
    has used the least time is next. Workloads without a round come first, even if the time is used up.

    turns: rounds of each workload so far. seconds: remaining time.
    """
    waiting = [name for name, turn in turns.items() if turn.rounds < (1 if name == "start" else rounds)]
    waiting = [name for name in waiting if not turns[name].rounds or turns[name].last <= seconds]
    return min(waiting, key=lambda name: (turns[name].rounds > 0, turns[name].seconds), default=None)


def _contest(contest: Contest, options: Options, results: Results, seconds: float, say: Callable[[str], None]) -> None:
    """Load all contestants of a contest, then run rounds for `seconds`, and at least one round of each workload."""
    processes = _load(contest, options, results, say)
    loaded = _Loaded(contest, processes, options, results, say)
    ends = time.monotonic() + seconds
    turns = {workload: Turns() for workload in contest.workloads}
    try:
        while (workload := next_workload(turns, options.rounds, ends - time.monotonic())) is not None:
            started, turn = time.monotonic(), turns[workload]
            loaded.round(workload, turn.rounds)
            took = time.monotonic() - started
            turns[workload] = Turns(turn.rounds + 1, turn.seconds + took, took)
    finally:
        for process in processes.values():
            process.close()


@dataclass(frozen=True)
class _Loaded:
    """A contest whose contestants have loaded the model.

    processes: process of each contestant by name.
    """

    contest: Contest
    processes: dict[str, ContestantProcess]
    options: Options
    results: Results
    say: Callable[[str], None]

    def round(self, workload: str, number: int) -> None:
        """Run one round of a workload with every contestant that takes part, has not failed, and is not too slow.

        number: index of the round, 0 for the first one.
        """
        work = workloads.job(workload, self.contest.shape, self.options.scale, seed=number + 1)
        names = [name for name in self.processes if self.contest.takes_part(name, workload)]
        entries = {name: self.results.entry(self.contest, workload, name) for name in names}
        for name in fast_enough(entries) if number else names:
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
        call = functools.partial(_run_job, process, work, limit)
        return _with_bandwidth(call) if workload == BANDWIDTH_WORKLOAD else call()


def fast_enough(entries: dict[str, dict[str, Any]]) -> list[str]:
    """Contestants to run again: Triptych, and peers with at least `MIN_PEER_RATE` of the best peer's first rate.

    entries: entry of each contestant by name.
    """
    rates = {
        name: entry["runs"][0]["units"] / entry["runs"][0]["seconds"]
        for name, entry in entries.items()
        if name not in OURS and entry["runs"]
    }
    limit = MIN_PEER_RATE * max(rates.values(), default=0.0)
    return [name for name in entries if name in OURS or rates.get(name, 0.0) >= limit]


def _load(
    contest: Contest, options: Options, results: Results, say: Callable[[str], None]
) -> dict[str, ContestantProcess]:
    """Start the contestants and load the model, one after the other, because some use all cores to convert it.

    Returns the process of each contestant that loaded the model, by name. Errors are stored in `results`.
    """
    processes: dict[str, ContestantProcess] = {}
    for name in contest.contestants:
        if not any(contest.takes_part(name, workload) for workload in contest.workloads):
            continue
        python = options.python if name in IN_OUR_ENVIRONMENT else options.peers
        program = options.programs.get(name)
        made = options.checkpoints / "made" / contest.shape
        made.mkdir(parents=True, exist_ok=True)
        directory = str(options.checkpoints / contest.shape)
        subject = Subject(contest.shape, contest.precision, directory, str(made), options.threads, program, options.isa)
        process = None
        try:
            if python is None:
                raise Failed("not run: no environment with peers was given (--peers)")
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
            results.loads = [load for load in results.loads if any(load[key_name] != key[key_name] for key_name in key)]
            results.loads.append({**key, **found})
        results.write()
    return processes


def _warm_up(process: ContestantProcess, workload: str, contest: Contest, options: Options) -> None:
    """Run a short job of the same kind, so that memory is allocated and code is compiled before the measurement."""
    work = workloads.job(workload, contest.shape, options.scale, seed=0)
    process.send({"job": vars(workloads.shortened(work))})
    process.receive(options.run_seconds)


def _run_job(process: ContestantProcess, work: workloads.Job, seconds: float) -> dict[str, Any]:
    """Run a job within `seconds`, and return its outcome.

    Raises Failed for an error, a timeout, and a wrong number of tokens or texts.
    """
    process.send({"job": vars(work)})
    outcome = process.receive(seconds)
    if work.kind == "embed":
        made, expected = outcome["texts"], len(work.inputs)
    else:
        made, expected = outcome["tokens"], sum(work.new_tokens)
    if made != expected:
        raise Failed(f"made {made} of {expected} {'texts' if work.kind == 'embed' else 'tokens'}")
    return outcome


def _with_bandwidth(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a job, and add `read_bytes_per_second` to its outcome: the mean read bandwidth just before and after it."""
    before = machine.usual_bandwidth()
    outcome = call()
    outcome["read_bytes_per_second"] = (before + machine.usual_bandwidth()) / 2
    return outcome


def _note_all(contest: Contest, results: Results, reason: str) -> None:
    for workload in contest.workloads:
        for name in contest.contestants:
            if contest.takes_part(name, workload):
                results.entry(contest, workload, name)["error"] = reason
