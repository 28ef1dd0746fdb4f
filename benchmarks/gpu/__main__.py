"""Measure Triptych on a GPU, as shares of the limits of the device, beside peers: `python -m benchmarks.gpu`.

    python -m benchmarks.gpu --out DIR                         runs for five minutes; repeat it to continue
    python -m benchmarks.gpu --device cpu --tiny --out DIR     tries all stages with tiny models, without a GPU
    python -m benchmarks.gpu.page DIR/gpu.json                 merges the results into docs/gpu.md

The stages run in order of priority, each in a process of its own. A row that fails, hangs or loses the device does not
stop the later ones. DIR/gpu.json and DIR/gpu.md are written after each row. A later run with the same results, in DIR
or in a file that --earlier names, goes on at the next row. Weights are random.

The limits of the device are measured first. The floor of a step is its shortest possible duration, the longer of two
times: the bytes that it must read divided by the bandwidth, and its operations divided by the rate of a large product.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu import page, results
from benchmarks.gpu.process import measure_device, run_rows
from benchmarks.gpu.results import Record
from benchmarks.gpu.row import Setup
from benchmarks.gpu.stages import STAGES, stage_of

MIN_SECONDS = 10.0
"""No process is started for rows if the budget has less time left than this."""


def main(arguments: list[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    end = time.monotonic() + given.budget
    given.out.mkdir(parents=True, exist_ok=True)
    _import_modules()
    setup = Setup(given.out.resolve(), (given.models or given.out / "models").resolve())
    if given.tiny:
        setup = setup.tiny_sizes()
    limits, description = measure_device(given.device, given.dtype, given.tiny)
    file = given.out / "gpu.json"
    record = Record(file, results.read([*given.earlier, file]), description, limits)
    names = page.row_names(setup)
    stages = [name for name in STAGES if name in given.only]
    if given.again:
        record.forget(name for stage in stages for name in names[stage])

    def report(name: str) -> None:
        results.write(given.out / "gpu.md", page.tables(record.results, names) + "\n")
        entry = record.entry(name)
        assert entry is not None
        result = entry.get("result", {})
        share = f", {result['share']:.1%}" if "share" in result else ""
        text = f"{result['value']:,.5g} {result['unit']}{share}" if result else entry["error"]
        print(f"{name}: {entry['state']}: {text}", flush=True)

    for stage in stages:
        while (pending := record.pending(names[stage])) and time.monotonic() < end - MIN_SECONDS:
            setup = replace(setup, done=record.done())
            seconds = STAGES[stage].row_seconds
            run_rows(stage, stage_of(stage), pending, setup, limits, record, seconds, end, report)
    left = [name for stage in stages for name in record.pending(names[stage])]
    if left:
        print(f"the budget is used up; run again to measure {len(left)} more rows, from {left[0]!r}", flush=True)
    print(f"{os.path.relpath(given.out)}/gpu.md has the tables", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--budget", type=float, default=300.0, help="seconds for all stages together (default: 300)")
    add("--out", type=Path, default=Path(".bench/gpu"), help="directory for results")
    add("--earlier", type=Path, nargs="+", default=[], help="files of earlier results, whose rows are not repeated")
    add("--models", type=Path, help="directory for random checkpoints of up to 16 GB (default: `models` in --out)")
    add("--device", choices=["auto", "cuda", "cpu"], default="auto")
    add("--dtype", choices=["auto", "bfloat16", "float16", "float32"], default="auto")
    add("--tiny", action="store_true", help="tiny models, to try all stages without a GPU")
    add("--only", nargs="+", choices=list(STAGES), default=list(STAGES), help="stages to run")
    add("--again", action="store_true", help="measure the rows of these stages again")
    return parser


def _import_modules() -> None:
    """Import the modules of all stages once, so that the processes of the stages do not have to import them."""
    for name in dict.fromkeys(entry.module for entry in STAGES.values()):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"benchmarks.gpu.{name}")


if __name__ == "__main__":
    main()
