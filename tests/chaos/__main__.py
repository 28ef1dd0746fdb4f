"""Run the checks of the promises and write the report: `python -m tests.chaos` (`make chaos`).

Every check runs in a separate process: once with the product as it is, and once with its planted bug, which it must
detect.

First, the checks that measure speed run, each alone. Then the checks that mostly wait run one after the other. Beside
them, three checks at a time run with one thread and a lower priority: those that only count, and most runs with planted
bugs, which change a count, a processor time or a ratio by much.

Results are written to a file after each check. `--resume` keeps the results in this file and runs the other checks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from tests.chaos.one import send_record
from tests.chaos.promise import Conditions, Promise
from tests.chaos.promises import PROMISES
from tests.chaos.report import is_caught, write_report

REPOSITORY = Path(__file__).resolve().parents[2]
FORKS = multiprocessing.get_context("forkserver")
"""Starts the processes of the checks by forking a process that has imported their modules, which takes seconds."""
TIMEOUT_SECONDS = 1800.0
DEAREST = 25
"""Number of the promise whose check searches for expensive bodies on every route. It takes about 30 minutes alone."""
PARTS = {"first": {*range(1, 30)} - {DEAREST}, "dearest": {DEAREST}, "later": {*range(30, 1000)}}
"""Numbers of the promises of `make chaos`, `make chaos-dearest` and `make chaos-later`, each within 30 minutes."""
LANES: dict[Conditions, int] = {"alone": 1, "waiting": 1, "any": 3}
"""How many checks with the same conditions run at the same time."""
PHASES: tuple[tuple[Conditions, ...], ...] = (("alone",), ("waiting", "any"))
"""The phases of a run. Checks with any of the conditions in a phase run at the same time."""


def run(promise: Promise, scale: str, bug: str | None, beside_others: bool) -> dict[str, Any]:
    """Run one check in a separate process and return its record.

    scale: `small` or `full`, the counts of the check. bug: name of the bug to plant, or None.
    beside_others: whether to use one thread and a lower priority.
    """
    began = time.monotonic()
    receiver, sender = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=send_record, args=(sender, promise.number, scale, bug, beside_others))
    process.start()
    assert process.pid is not None
    sender.close()
    try:
        record = receiver.recv() if receiver.poll(TIMEOUT_SECONDS) else None
    except EOFError:
        record = None
    if record is None:
        record = {"runs": 0, "passed": False, "measures": [], "failures": ["the check ended without a result"]}
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return record | {"seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of promises", default=[])
    parser.add_argument("--part", choices=PARTS, help="the promises of one target; results of the other are kept")
    parser.add_argument("--scale", choices=["small", "full"], default="full")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "build" / "chaos.json")
    parser.add_argument("--report", type=Path, help="page to write")
    parser.add_argument("--resume", action="store_true", help="keep the results that are in the file")
    parser.add_argument("--no-bugs", action="store_true", help="skip the runs with planted bugs")
    arguments = parser.parse_args()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    numbers = {*arguments.only} or {*PARTS.get(arguments.part, ())} or {promise.number for promise in PROMISES}
    known = (arguments.resume or arguments.part) and arguments.results.exists()
    results: dict[str, Any] = json.loads(arguments.results.read_text()) if known else {}
    if not arguments.resume:
        results = {number: found for number, found in results.items() if int(number) not in numbers}
    FORKS.set_forkserver_preload(["tests.chaos.one"])
    asked = [promise for promise in PROMISES if promise.number in numbers]
    lock = Lock()

    def check(promise: Promise, bug: str | None, conditions: Conditions) -> None:
        record = run(promise, "small" if bug else arguments.scale, bug, beside_others=conditions == "any")
        with lock:
            print(f"{promise.number:2} {promise.title}\n{_line(bug or 'as it is', record)}", flush=True)
            result = results.setdefault(str(promise.number), {"scale": arguments.scale, "controls": {}})
            if bug:
                result["controls"][bug] = record
            else:
                result["record"] = record
            arguments.results.write_text(json.dumps(results, indent=1))

    runs: dict[Conditions, list[tuple[Promise, str | None]]] = {conditions: [] for conditions in LANES}
    for promise in asked:
        if "record" not in results.get(str(promise.number), {}):
            runs[promise.conditions].append((promise, None))
    if not arguments.no_bugs:
        for promise in asked:
            for bug in promise.bugs:
                if bug not in results.get(str(promise.number), {}).get("controls", {}):
                    runs[promise.bug_conditions].append((promise, bug))
    for phase in PHASES:
        with ExitStack() as stack:
            pools = [(stack.enter_context(ThreadPoolExecutor(LANES[lane])), lane) for lane in phase]
            tasks = [pool.submit(check, *found, lane) for pool, lane in pools for found in runs[lane]]
            for task in tasks:
                task.result()
    if arguments.report is not None:
        write_report(arguments.report, results)
    caught = all(is_caught(control) for entry in results.values() for control in entry["controls"].values())
    return int(not (caught and all(entry["record"]["passed"] for entry in results.values())))


def _line(name: str, record: dict[str, Any]) -> str:
    measures = [
        f"{measure['what']} {measure['worst']:.4g} {measure['unit']} (limit {measure['limit']:g})"
        for measure in record["measures"]
    ]
    passed = "pass" if record["passed"] else "FAIL"
    details = "; ".join([*measures, *record["failures"]])
    return f"   {name}: {passed}, {record['runs']} runs, {record['seconds']} s; {details}"


if __name__ == "__main__":
    sys.exit(main())
