"""Measure Triptych on a GPU, as shares of the limits of the device: `python -m benchmarks.gpu --budget 600 --out DIR`.

    python -m benchmarks.gpu --device cpu --tiny --out DIR     tries all stages with tiny models, without a GPU

The stages run in order of priority, each in a process of its own. A stage that fails, hangs or loses the device does
not stop the later ones. DIR/gpu.json and DIR/gpu.md are written after each result. A stage for which the budget has no
time is listed as not run. Weights are random.

The limits of the device are measured first. The floor of a step is its shortest possible duration, the longer of two
times: the bytes that it must read divided by the bandwidth, and its operations divided by the rate of a large product.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_device import Limits, describe, measure_limits
from benchmarks.gpu_result import Result, Setup, Stage

STAGES: Mapping[str, tuple[str, tuple[str, ...], float]] = {
    "parity": ("gpu_parity.parity", (), 240),
    "jobs": ("gpu_jobs.jobs", (), 60),
    "decode-1b": ("gpu_steps.decode", ("llama-1b",), 60),
    "decode-8b": ("gpu_steps.decode", ("llama-8b",), 90),
    "attention": ("gpu_steps.attention", (), 40),
    "decode-gpt2": ("gpu_steps.decode", ("gpt2",), 40),
    "decode-t5-large": ("gpu_steps.decode", ("t5-large",), 60),
    "opus-mt": ("gpu_engine.translate", (), 60),
    "bert-base": ("gpu_steps.encode", ("bert-base",), 30),
    "prefill-1b": ("gpu_steps.prefill", ("llama-1b",), 40),
    "prefill-8b": ("gpu_steps.prefill", ("llama-8b",), 60),
    "decode-8b-int8": ("gpu_steps.decode", ("llama-8b", "int8"), 90),
    "decode-8b-int4": ("gpu_steps.decode", ("llama-8b", "int4"), 90),
    "http-8b": ("gpu_engine.serve", (), 300),
    "kernels-1b": ("gpu_profile.kernels", ("llama-1b",), 40),
    "kernels-8b": ("gpu_profile.kernels", ("llama-8b",), 60),
    "kernels-bert-base": ("gpu_profile.kernels", ("bert-base",), 20),
}
"""Stages in order of priority, by name: name of a function, its arguments, and the longest duration in seconds.

A function with arguments returns the stage; a function without arguments is the stage itself.
"""
COLUMNS = ("stage", "measured", "value", "step, ms", "floor, ms", "share", "goal", "note")
MIN_SECONDS = 10.0
"""A stage is not started if the budget has less time left than this."""
KILL_SECONDS = 10.0
"""Time that the process of a stage has to end by itself, before it is killed."""


def stage_of(name: str) -> Stage:
    """Return the stage with this name.

    Its module is imported only when it runs, so that a missing package fails only the stages that need it.
    """
    path, arguments, _ = STAGES[name]
    module, _, function = path.partition(".")

    def run(setup: Setup, limits: Limits) -> Iterator[Result]:
        found = getattr(importlib.import_module(f"benchmarks.{module}"), function)
        stage: Stage = found(*arguments) if arguments else found
        yield from stage(setup, limits)

    return run


def _import_modules() -> None:
    """Import the modules of all stages once, so that the processes of the stages do not have to import them."""
    for path, _, _ in STAGES.values():
        with contextlib.suppress(ImportError):
            importlib.import_module(f"benchmarks.{path.partition('.')[0]}")


class Report:
    """Results of a run as JSON data, which `write` saves to the files gpu.json and gpu.md in `out`."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.data: dict[str, Any] = {"stages": []}

    def add_stage(self, name: str) -> dict[str, Any]:
        """Add an entry for a stage, and return it. The caller changes the entry, then calls `write`."""
        entry: dict[str, Any] = {"name": name, "status": "running", "results": []}
        self.data["stages"].append(entry)
        return entry

    def write(self) -> None:
        """Write gpu.json and gpu.md, each atomically."""
        self._out.mkdir(parents=True, exist_ok=True)
        for name, content in (("gpu.json", json.dumps(self.data, indent=1)), ("gpu.md", self._page())):
            unfinished = self._out / f"{name}.new"
            unfinished.write_text(content + "\n")
            unfinished.replace(self._out / name)

    def _page(self) -> str:
        described = {**self.data.get("device", {}), **self.data.get("limits", {})}
        lines = [", ".join(f"{name} {_short(value)}" for name, value in described.items()), ""]
        lines += [
            "| stage | measured | value | step, ms | floor, ms | share | goal | note |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for stage in self.data["stages"]:
            for result in stage["results"]:
                cells = [stage["name"], result["name"], f"{_short(result['value'])} {result['unit']}"]
                cells += [_cell(result, name, 1e3, "") for name in ("seconds", "floor_seconds")]
                cells += [_cell(result, name, 100, "%") for name in ("share", "goal")]
                lines.append(f"| {' | '.join([*cells, result.get('note', '')])} |")
            if stage["status"] != "done":
                lines.append(f"| {stage['name']} | {stage['status']}: {stage.get('error', '')} | | | | | | |")
        return "\n".join(lines)


def _cell(result: Mapping[str, Any], name: str, factor: float, unit: str) -> str:
    return f"{_short(result[name] * factor)}{unit}" if name in result else ""


def _short(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value}"


def run_stage(entry: dict[str, Any], report: Report, stage: Stage, setup: Setup, limits: Limits) -> None:
    """Run a stage in its own process, and record each result when it arrives.

    The stage is killed after `setup.seconds`. An error is recorded, not raised.

    entry: entry of the stage in the report.
    """
    started = time.monotonic()
    # A forked process has the imports of this one. It can use the device, because this process never does.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_in_child, args=(sender, stage, setup, limits))
    process.start()
    sender.close()
    too_long = f"it took more than {setup.seconds:.0f} s"
    error: str | None = None
    while error is None:
        if not receiver.poll(max(setup.seconds - (time.monotonic() - started), 0.0)):
            error = too_long
            process.kill()
            continue
        try:
            kind, content = receiver.recv()
        except EOFError:
            process.join(KILL_SECONDS)
            error = f"its process ended with status {process.exitcode}"
            continue
        if kind == "result":
            entry["results"].append(content)
            report.write()
        else:
            error = content
    process.join(KILL_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
    entry["status"] = "failed" if error else "done"
    if error:
        entry["error"] = error
    entry["seconds"] = time.monotonic() - started
    report.write()


def _run_in_child(sender: Connection, stage: Stage, setup: Setup, limits: Limits) -> None:
    """Run a stage and send each result to the parent process, then an error message, which is empty after success."""
    try:
        with torch.inference_mode():
            for result in stage(setup, limits):
                sender.send(("result", result.plain()))
        sender.send(("end", ""))
    except BaseException as error:
        log = setup.out / "errors.txt"
        with log.open("a") as file:
            traceback.print_exc(file=file)
        lines = str(error).strip().splitlines() or [""]
        sender.send(("end", f"{type(error).__name__}: {lines[0][:300]}"))


def measure_device(device: str, dtype: str, tiny: bool, report: Report) -> Limits:
    """Measure the limits of the device in another process, so that this process does not use the device.

    device: `cuda` or `cpu`; `auto` means cuda if torch finds a device, else cpu.
    dtype: name of the dtype of weights; `auto` means float32 on a CPU, else bfloat16.
    Raises RuntimeError if the measurement fails.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_in_child, args=(sender, device, dtype, tiny))
    process.start()
    sender.close()
    try:
        found, described = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the limits of the device cannot be measured: status {process.exitcode}") from None
    process.join()
    report.data |= {"device": described, "limits": found.plain()}
    report.write()
    return found


def _measure_in_child(sender: Connection, device: str, dtype: str, tiny: bool) -> None:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    sender.send((measure_limits(device, dtype, tiny), describe(device)))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for all stages together (default: 600)")
    parser.add_argument("--out", type=Path, default=Path(".bench/gpu"), help="directory for results and checkpoints")
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float16", "float32"], default="auto")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try all stages without a GPU")
    parser.add_argument("--only", nargs="+", choices=list(STAGES), default=list(STAGES), help="stages to run")
    given = parser.parse_args(arguments)
    end = time.monotonic() + given.budget
    report = Report(given.out)
    report.write()
    _import_modules()
    limits = measure_device(given.device, given.dtype, given.tiny, report)
    setup = Setup(given.out.resolve())
    if given.tiny:
        setup = setup.tiny_sizes()
    for name in (name for name in STAGES if name in given.only):
        most = STAGES[name][2]
        entry, left = report.add_stage(name), end - time.monotonic()
        if left < MIN_SECONDS:
            entry["status"], entry["error"] = "not run", "the budget is used up"
            report.write()
            continue
        run_stage(entry, report, stage_of(name), replace(setup, seconds=min(most, left)), limits)
        print(f"{name}: {entry['status']} {entry.get('error', '')} after {entry['seconds']:.1f} s", flush=True)
        for result in entry["results"]:
            share = f", {result['share']:.1%}" if "share" in result else ""
            print(f"  {result['name']}: {_short(result['value'])} {result['unit']}{share}", flush=True)
    print(f"{os.path.relpath(given.out)}/gpu.md has the table", flush=True)


if __name__ == "__main__":
    main()
