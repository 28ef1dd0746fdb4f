"""Run the checks of the promises and write the report: `python -m tests.chaos` (`make chaos`).

Every check runs in a process of its own: once as the product is, once with its planted bug, which it must catch.
Results are written to a file after each check; `--resume` keeps those that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.chaos.promise import Promise
from tests.chaos.promises import PROMISES
from tests.chaos.report import is_caught, write_report

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 900.0


def run(promise: Promise, scale: str, bug: str | None) -> dict[str, Any]:
    """Run one check in a process of its own and return its record."""
    command = [sys.executable, "-m", "tests.chaos.one", str(promise.number), scale, *([bug] if bug else [])]
    began = time.monotonic()
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True
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
    for promise in PROMISES:
        if (arguments.only and promise.number not in arguments.only) or str(promise.number) in results:
            continue
        print(f"{promise.number:2} {promise.title}", flush=True)
        record = run(promise, arguments.scale, None)
        _say("as it is", record)
        controls = {}
        for bug in () if arguments.no_bugs else promise.bugs:
            controls[bug] = run(promise, "small", bug)
            _say(bug, controls[bug])
        results[str(promise.number)] = {"scale": arguments.scale, "record": record, "controls": controls}
        arguments.results.write_text(json.dumps(results, indent=1))
    if arguments.report is not None:
        write_report(arguments.report, results)
    caught = all(is_caught(control) for one in results.values() for control in one["controls"].values())
    return int(not (caught and all(one["record"]["passed"] for one in results.values())))


def _say(name: str, record: dict[str, Any]) -> None:
    measures = [
        f"{one['what']} {one['worst']:.4g} {one['unit']} (limit {one['limit']:g})" for one in record["measures"]
    ]
    print(
        f"   {name}: {'pass' if record['passed'] else 'FAIL'}, {record['runs']} runs, {record['seconds']} s; "
        + "; ".join([*measures, *record["failures"]]),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
