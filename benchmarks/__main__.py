"""Compare Triptych with other engines: `python -m benchmarks [--quick | --tiny] [--only ...] [--minutes ...]`.

`make bench` and `make bench-quick` install the peers and run this module. Every contestant runs in its own process.
Results are written after every run, and the result page is written at the end from all results.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import growth, machine, measure, plan, report, workloads
from benchmarks.contestants import LLAMA_CPP, LLAMA_LIBRARY
from benchmarks.process import REPOSITORY


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="main rows only, in less than five minutes")
    size.add_argument(
        "--quantized", action="store_true", help="settings of --quantize beside the formats of llama.cpp, in process"
    )
    size.add_argument("--tiny", action="store_true", help="tiny models and workloads, to test the benchmarks")
    parser.add_argument(
        "--only", nargs="+", default=[], help="workloads, shapes or precisions, also joined: llama-135m/int8/B"
    )
    parser.add_argument("--contestants", nargs="+", default=[], help="peers to run; Triptych always runs")
    parser.add_argument("--minutes", type=float, help="time after which no round starts (default: 120; 4 with --quick)")
    parser.add_argument("--rounds", type=int, help="largest number of rounds per workload (default: 9; 3 with --quick)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of each contestant")
    parser.add_argument("--peers", help="Python interpreter with the peers installed; without it no peer runs")
    parser.add_argument("--llama-cpp", help="path of llama-server; for its models see contestants/llama_cpp.py")
    parser.add_argument(
        "--llama-library",
        help="folder with the library of llama.cpp: packages with xllamacpp, or one with libllama.so",
    )
    parser.add_argument(
        "--isa",
        help="limit Triptych, in process only, to these kernels, such as v3 (AVX2); for peers built for the same",
    )
    parser.add_argument("--checkpoints", type=Path, default=Path(".bench"), help="directory for the models")
    parser.add_argument("--add", action="store_true", help="keep earlier results that this run does not replace")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="directory of benchmarks.md and its figures")
    given = parser.parse_args(arguments)

    scale = workloads.QUICK if given.quick else workloads.TINY if given.tiny else workloads.FULL
    contests = plan.quick() if given.quick else plan.tiny() if given.tiny else plan.full()
    contests = plan.quantized() if given.quantized else contests
    contests = plan.select(contests, given.only, given.contestants)
    is_partial = given.only or given.quick or given.quantized
    sections = [name for name in growth.SECTIONS if name in given.only or not is_partial]
    if not contests and not sections:
        parser.error("--only selects no workload of this run")
    options = measure.Options(
        checkpoints=given.checkpoints.resolve(),
        python=sys.executable,
        peers=given.peers,
        threads=given.threads,
        rounds=given.rounds or (3 if given.quick else 1 if given.tiny else 9),
        budget_seconds=60 * (given.minutes or (4 if given.quick else 120)),
        scale=scale,
        run_seconds=60.0 if given.quick else 300.0,
        detailed_shape="llama-tiny" if given.tiny else "llama-135m",
        programs={
            **(dict.fromkeys(LLAMA_CPP, given.llama_cpp) if given.llama_cpp else {}),
            **(dict.fromkeys(LLAMA_LIBRARY, given.llama_library) if given.llama_library else {}),
        },
        isa=given.isa,
    )
    folder = given.out / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    say = functools.partial(print, flush=True)
    about = machine.describe(given.threads) | {"versions": machine.versions(given.peers), "scale": vars(scale)}
    about["isa"] = given.isa
    results = measure.Results(folder / "results.json", about)
    if given.add:
        try:
            results.read()
        except ValueError as error:
            parser.error(str(error))
    shapes = sorted({contest.shape for contest in contests} | ({options.detailed_shape} if sections else set()))
    make = [given.peers or sys.executable, "-m", "benchmarks.checkpoints", str(options.checkpoints), *shapes]
    subprocess.run(make, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    try:
        growth.run(sections, contests or plan.full(), options, results, say)
        measure.run(contests, options, results, say)
    finally:
        results.write()
        report.write(results.path, given.out / "benchmarks.md")
    print(f"wrote {given.out / 'benchmarks.md'}")


if __name__ == "__main__":
    main()
