"""Measure how speed grows with the cores of this machine: `python -m benchmarks.cores [--minutes 8] [--only A E]`.

Each workload runs in the engine, without HTTP, with 1, 2, 4, 8, ... threads on as many cores, and then as 1, 2, 4, ...
workers of one thread that run at the same time. Each number of threads is measured in a process of its own, which is
pinned to the first cores, package by package.

For each number of threads, the page shows the speed-up over one thread, beside the speed-up of the floor. The floor is
the shortest possible time of the matrix products, given the memory bandwidth and the peak rate that this number of
threads reaches. A cost model (`benchmarks.cost_model`) is fitted on 1 and 2 threads, and its prediction is shown beside
the measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.cost_model import Fit, Timing, fit
from benchmarks.process import REPOSITORY
from server.system.cores import Cores, cores_of_this_process

ROWS = (
    ("A", "llama-135m"),
    ("B", "llama-135m"),
    ("C", "llama-135m"),
    ("D", "marian-74m"),
    ("E", "minilm-22m"),
    ("F", "bert-base"),
    ("L", "minilm-22m"),
    ("A", "llama-1b"),
    ("B", "llama-1b"),
)
"""Workload and shape of each row. If the time is short, the last rows are left out."""
PRECISION = "bfloat16"
ROUNDS = 3


class Row(NamedTuple):
    """A workload, and the shape of the model that runs it: one row of the page."""

    workload: str
    shape: str


def numbers(most: int) -> list[int]:
    """The numbers of threads or workers to measure: 1, 2, 4, 8, ... up to `most`, and `most` itself."""
    return sorted({*(1 << power for power in range(most.bit_length()) if 1 << power <= most), most})


def measure(rows: Sequence[Row], threads: int, directory: Path, precision: str) -> dict[str, Timing]:
    """Run workloads in this process with `threads` threads. Returns the time of each row, by name ("WORKLOAD, SHAPE").

    directory: directory of the checkpoints. precision: precision of the models.
    """
    import torch

    from benchmarks import machine, workloads
    from benchmarks.contestants.contract import Subject
    from benchmarks.contestants.ours import Entry
    from models.backends.cpu.programs import program

    torch.set_num_threads(threads)
    bandwidth, peak = machine.usual_bandwidth(), machine.peak(precision)
    found: dict[str, Timing] = {}
    for shape in dict.fromkeys(row.shape for row in rows):
        entry = Entry()
        entry.load(Subject(shape, precision, str(directory / shape), "", threads, None))
        for row in (row for row in rows if row.shape == shape):
            entry.run(workloads.shortened(workloads.job(row.workload, shape, workloads.QUICK, seed=0)))
            seconds = []
            for number in range(ROUNDS):
                work = workloads.job(row.workload, shape, workloads.QUICK, seed=number + 1)
                seconds.append(entry.run(work).seconds)
            with program.measuring() as measurement:
                work = workloads.job(row.workload, shape, workloads.QUICK, seed=ROUNDS + 1)
                entry.run(work)
            floors = measurement.by_name(bandwidth, peak).values()
            found[_name(row)] = Timing(
                statistics.median(seconds), sum(floor for _, floor in floors), measurement.num_operations, work.units
            )
    return found


def _name(row: Row) -> str:
    return f"{row.workload}, {row.shape}"


def run_child(
    rows: Sequence[Row], processors: Sequence[int], threads: int, options: argparse.Namespace
) -> subprocess.Popen[str]:
    """Start a process that measures the workloads of `rows` and prints their times as JSON.

    processors: logical processors to which the process is pinned.
    """
    command = [sys.executable, "-m", "benchmarks.cores", "--child", str(threads), "--checkpoints"]
    command += [str(options.checkpoints), "--precision", options.precision, "--rows", json.dumps(rows)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}

    def pin() -> None:
        os.sched_setaffinity(0, processors)

    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=environment, preexec_fn=pin)


def read_child(child: subprocess.Popen[str]) -> dict[str, Timing]:
    """Wait for a process that `run_child` started, and return its times. Raises RuntimeError if it fails."""
    output, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"a measurement ended with status {child.returncode}")
    return {name: Timing(*values) for name, values in json.loads(output.splitlines()[-1]).items()}


def describe(cores: Cores) -> Iterator[str]:
    """Yield lines about the processors: cores, hardware threads, classes of cores, memory nodes, CPU quota."""
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    quota = "none" if cores.quota is None else f"{cores.quota:g} processors"
    yield f"- cores: {len(cores.fast)} that steps use, {len(cores.all)} in all; logical processors: {cores.processors}"
    yield f"- memory nodes: {len(nodes) or 1}; quota of the container: {quota}"
    yield f"- threads of a step by default, for a large model: {cores.threads}"


def page(
    rows: Sequence[Row], by_threads: dict[int, dict[str, Timing]], by_workers: dict[int, dict[str, float]]
) -> Iterator[str]:
    """Yield the lines of two tables: one worker with several threads, and several workers with one thread.

    by_threads: number of threads → name of the row → time.
    by_workers: number of workers → name of the row → rate of all workers together, in units per second.
    """
    yield "| workload | threads | rate | speed-up | floor allows | reached | model says | waiting for threads |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in map(_name, rows):
        times = {threads: found[name] for threads, found in by_threads.items() if name in found}
        if 1 not in times:
            continue
        model = fit(times)
        for threads, timing in times.items():
            yield "| " + " | ".join(_cells(name, threads, timing, times[1], model)) + " |"
    if len(by_workers) > 1:
        yield ""
        yield "| workload | workers of one thread | rate | speed-up |"
        yield "|---|---|---|---|"
        for name in map(_name, rows):
            for workers, rates in by_workers.items():
                if name in rates and name in by_workers[1]:
                    growth = rates[name] / by_workers[1][name]
                    yield f"| {name} | {workers} | {rates[name]:,.0f} /s | {growth:.2f} |"


def _cells(name: str, threads: int, timing: Timing, single: Timing, model: Fit | None) -> list[str]:
    growth, allowed = single.seconds / timing.seconds, single.floor / timing.floor
    said, waiting = "", ""
    if model is not None and threads > 1:
        said = f"{single.seconds / model.seconds(threads, single, timing):.2f}"
        waiting = f"{model.barrier_seconds(threads) * timing.operations / timing.seconds:.0%}"
    rate = f"{timing.units / timing.seconds:,.0f} /s"
    return [name, str(threads), rate, f"{growth:.2f}", f"{allowed:.2f}", f"{growth / allowed:.0%}", said, waiting]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.cores", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", default=[], help="workloads or shapes to run (default: all)")
    parser.add_argument("--minutes", type=float, default=8.0, help="time after which no measurement starts")
    parser.add_argument("--precision", default=PRECISION, help=f"precision of the models (default: {PRECISION})")
    parser.add_argument("--oversubscribe", action="store_true", help="also more threads than cores, to check the model")
    parser.add_argument("--checkpoints", type=Path, default=Path(".bench"), help="directory for the models")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=json.loads, default=list(ROWS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.checkpoints = given.checkpoints.resolve()
    rows = [Row(*row) for row in given.rows if not given.only or set(row) & set(given.only)]
    if given.child is not None:
        print(json.dumps(measure(rows, given.child, given.checkpoints, given.precision)))
        return
    ends = time.monotonic() + 60 * given.minutes
    for shape in dict.fromkeys(row.shape for row in rows):
        make = [sys.executable, "-m", "benchmarks.checkpoints", str(given.checkpoints), shape]
        subprocess.run(make, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    cores = cores_of_this_process()
    print("\n".join(describe(cores)), "", sep="\n", flush=True)
    by_threads: dict[int, dict[str, Timing]] = {}
    by_workers: dict[int, dict[str, float]] = {}
    most = len(cores.fast)
    for threads in [*numbers(most), *([2 * most, 4 * most] if given.oversubscribe else [])]:
        if time.monotonic() < ends:
            used = [core[0] for core in cores.fast[:threads]]
            by_threads[threads] = read_child(run_child(rows, used, threads, given))
            print(f"{threads} threads measured", file=sys.stderr, flush=True)
    for workers in numbers(most):
        if time.monotonic() < ends:
            children = [run_child(rows, [core[0]], 1, given) for core in cores.fast[:workers]]
            found = [read_child(child) for child in children]
            by_workers[workers] = {name: sum(own[name].units / own[name].seconds for own in found) for name in found[0]}
    print("\n".join(page(rows, by_threads, by_workers)))


if __name__ == "__main__":
    main()
