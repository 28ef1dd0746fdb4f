"""Run the checks of the promises and write the report: `python -m tests.chaos` (`make chaos`).

Every check runs in a process of its own: once as the product is, once with its planted bug, which it must catch.
Checks that measure speed run alone. Then those that mostly wait run two at a time, and those that only count three at
a time, each with one thread. The runs with planted bugs run beside others too, those of checks that run alone two at a
time: a bug fails its check by a count, a processor time or a large factor.
Results are written to a file after each check; `--resume` keeps those that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from tests.chaos.promise import Conditions, Promise
from tests.chaos.promises import PROMISES
from tests.chaos.report import is_caught, write_report

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 900.0
AT_ONCE: dict[Conditions, int] = {"alone": 1, "waiting": 2, "any": 3}
"""Checks that run at the same time, by their conditions, in the order in which they run."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TRIPTYCH_THREADS": "1"}
"""One thread for each process: threads of one matrix product would wait for each other on cores that other checks use.
"""


def run(promise: Promise, scale: str, bug: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run one check in a process of its own and return its record. environment: variables for it and its servers."""
    command = [sys.executable, "-m", "tests.chaos.one", str(promise.number), scale, *([bug] if bug else [])]
    began = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
    last = output.strip().splitlines()[-1:] or [""]
    try:
        record = json.loads(last[0])
    except json.JSONDecodeError:
        record = {"runs": 0, "passed": False, "measures": [], "failures": ["the check ended without a result"]}
    return record | {"seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of promises", default=[])
    parser.add_argument("--scale", choices=["small", "full"], default="full")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "build" / "chaos.json")
    parser.add_argument("--report", type=Path, help="page to write")
    parser.add_argument("--resume", action="store_true", help="keep the results that are in the file")
    parser.add_argument("--no-bugs", action="store_true", help="skip the runs with planted bugs")
    arguments = parser.parse_args()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    known = arguments.resume and arguments.results.exists()
    results: dict[str, Any] = json.loads(arguments.results.read_text()) if known else {}
    asked = [promise for promise in PROMISES if not arguments.only or promise.number in arguments.only]
    lock = Lock()

    def check(promise: Promise, bug: str | None, conditions: Conditions) -> None:
        environment = ONE_THREAD if conditions == "any" else {}
        record = run(promise, "small" if bug else arguments.scale, bug, environment)
        with lock:
            print(f"{promise.number:2} {promise.title}\n{_line(bug or 'as it is', record)}", flush=True)
            result = results.setdefault(str(promise.number), {"scale": arguments.scale, "controls": {}})
            if bug:
                result["controls"][bug] = record
            else:
                result["record"] = record
            arguments.results.write_text(json.dumps(results, indent=1))

    runs: dict[Conditions, list[tuple[Promise, str | None]]] = {conditions: [] for conditions in AT_ONCE}
    for promise in asked:
        if "record" not in results.get(str(promise.number), {}):
            runs[promise.conditions].append((promise, None))
    if not arguments.no_bugs:
        for promise in asked:
            for bug in promise.bugs:
                if bug not in results.get(str(promise.number), {}).get("controls", {}):
                    runs["any" if promise.conditions == "any" else "waiting"].append((promise, bug))
    for conditions, found in runs.items():
        with ThreadPoolExecutor(AT_ONCE[conditions]) as pool:
            list(pool.map(lambda one, conditions=conditions: check(*one, conditions), found))
    if arguments.report is not None:
        write_report(arguments.report, results)
    caught = all(is_caught(control) for one in results.values() for control in one["controls"].values())
    return int(not (caught and all(one["record"]["passed"] for one in results.values())))


def _line(name: str, record: dict[str, Any]) -> str:
    measures = [
        f"{one['what']} {one['worst']:.4g} {one['unit']} (limit {one['limit']:g})" for one in record["measures"]
    ]
    passed = "pass" if record["passed"] else "FAIL"
    details = "; ".join([*measures, *record["failures"]])
    return f"   {name}: {passed}, {record['runs']} runs, {record['seconds']} s; {details}"


if __name__ == "__main__":
    sys.exit(main())
