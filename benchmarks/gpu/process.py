"""Measure the rows of a stage in a separate process, so that a row that fails or hangs does not affect other rows."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from benchmarks.gpu.device import Limits, describe, measure_limits
from benchmarks.gpu.results import Record
from benchmarks.gpu.row import Setup, Skipped, Stage
from server.ipc.wire.descriptions import DeviceChoice

KILL_SECONDS = 10.0
"""Time in which the process of a stage must end by itself. After that it is killed."""


def run_rows(
    stage_name: str,
    stage: Stage,
    pending: Sequence[str],
    setup: Setup,
    limits: Limits,
    record: Record,
    row_seconds: float,
    end: float,
    report: Callable[[str], None],
) -> None:
    """Measure rows of a stage in a separate process, and record each row when it ends. Errors are recorded, not raised.

    The process ends at the first row that takes too long or loses the device. The caller then calls this function
    again for the remaining rows.

    pending: names of the rows to measure, in their order.
    row_seconds: longest duration of a row, the time to build its model included.
    end: time of time.monotonic() at which the run ends. The row that is then being measured is recorded as cut.
    report: called with the name of each row that has ended.
    """
    # A forked process need not import the modules again. It can use the device, because this process never does.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_in_child, args=(sender, stage, pending, setup, limits))
    process.start()
    sender.close()
    current, last = pending[0], time.monotonic()
    while True:
        now = time.monotonic()
        if not receiver.poll(max(min(last + row_seconds, end) - now, 0.0)):
            process.kill()
            if time.monotonic() >= end:
                record.add_failure(stage_name, current, "cut", "the run ended before this row")
            else:
                record.add_failure(stage_name, current, "failed", f"it took more than {row_seconds:.0f} s")
            report(current)
            break
        try:
            kind, name, content = receiver.recv()
        except EOFError:
            process.join(KILL_SECONDS)
            error = f"its process ended with status {process.exitcode}"
            record.add_failure(stage_name, current, "failed", error)
            report(current)
            break
        if kind == "start":
            current = name
            continue
        last = time.monotonic()
        if kind == "end":
            break
        if kind == "measured":
            record.add(stage_name, name, content)
        else:
            record.add_failure(stage_name, name, kind, content)
        report(name)
    process.join(KILL_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()


def _run_in_child(sender: Connection, stage: Stage, pending: Sequence[str], setup: Setup, limits: Limits) -> None:
    """Measure rows, and send (kind, name, content) for each: `start`, then `measured`, `skipped` or `failed`."""
    done = dict(setup.done)
    name = pending[0]
    with torch.inference_mode():
        for row in stage(replace(setup, done=done), limits):
            if row.name not in pending:
                continue
            name = row.name
            sender.send(("start", name, None))
            try:
                done[name] = result = row.measure()
                sender.send(("measured", name, result))
            except Skipped as reason:
                sender.send(("skipped", name, str(reason)))
            except BaseException as error:
                with (setup.out / "errors.txt").open("a") as file:
                    print(f"\n{name}", file=file)
                    traceback.print_exc(file=file)
                lines = str(error).strip().splitlines() or [""]
                sender.send(("failed", name, f"{type(error).__name__}: {lines[0][:300]}"))
                if _is_lost(limits):
                    break
    sender.send(("end", name, None))


def _is_lost(limits: Limits) -> bool:
    """Whether calls to the device fail, so that only a new process can use it."""
    if limits.device != "cuda":
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def measure_device(device: DeviceChoice, dtype: str, tiny: bool) -> tuple[Limits, dict[str, object]]:
    """Measure the limits of the device in another process, so that this process does not use the device.

    device: `cuda` or `cpu`; `auto` means cuda if torch finds a device, else cpu.
    dtype: name of the dtype of weights; `auto` means float32 on a CPU, else bfloat16.
    Returns the limits and the description of the device. Raises RuntimeError if the measurement fails.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_in_child, args=(sender, device, dtype, tiny))
    process.start()
    sender.close()
    try:
        found: tuple[Limits, dict[str, object]] = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the limits of the device cannot be measured: status {process.exitcode}") from None
    process.join()
    return found


def _measure_in_child(sender: Connection, device: DeviceChoice, dtype: str, tiny: bool) -> None:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    sender.send((measure_limits(device, dtype, tiny), describe(device)))
