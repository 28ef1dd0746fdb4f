"""Stage of `benchmarks.gpu` that runs the tests which compare models with transformers, on the device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.gpu.device import Limits
from benchmarks.gpu.row import Result, Row, Setup
from server.system.child import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
INTERPRETER = sys.executable
_OUTCOME = re.compile(r"\b(PASSED|FAILED|ERROR)\b")


def parity(setup: Setup, limits: Limits) -> Iterator[Row]:
    """Stage that runs the tests which compare models with transformers, with the models on the device."""
    yield Row("tests that passed on the device", partial(_measure, setup, limits))


def _measure(setup: Setup, limits: Limits) -> Result:
    """Run the tests, and count those that passed.

    They run in several processes with pytest-xdist, except with `setup.tiny`. Their output is written to parity.txt. A
    run that takes too long is stopped, and the tests that ended before are counted.
    Raises RuntimeError if no test ran.
    """
    tests = [test for test in setup.tests if (ROOT / test).exists()]
    command = [INTERPRETER, "-m", "pytest", "-vv", "-m", "not rare_family", "--tb=short", *tests]
    if not setup.tiny:
        command += ["-n", str(min(8, os.cpu_count() or 1))]
    log = setup.out / "parity.txt"
    environment = os.environ | {"TRIPTYCH_TEST_DEVICE": limits.device}
    ended = "all tests ended"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, preexec_fn=die_with_parent
        )
        try:
            process.wait(setup.test_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = f"stopped after {setup.test_seconds:.0f} s"
    lines = log.read_text(errors="replace").splitlines()
    outcomes = [(found[1], line) for line in lines if (found := _OUTCOME.search(line)) and "::" in line]
    # The summary at the end repeats the names of failed tests.
    passed = {_name(line) for outcome, line in outcomes if outcome == "PASSED"}
    failed = sorted({_name(line) for outcome, line in outcomes if outcome != "PASSED"})
    if not passed and not failed:
        raise RuntimeError(f"no test ran: {lines[-1] if lines else 'pytest printed nothing'}")
    note = f"{ended}; failed: {', '.join(failed[:8])}" if failed else ended
    return Result(len(passed), f"of {len(passed) + len(failed)}", note=note)


def _name(line: str) -> str:
    """The name of the test in a line of pytest's output."""
    found = re.search(r"(tests/\S+::.*)", line)
    name = line if found is None else found[1]
    return re.sub(r"\s+(PASSED|FAILED|ERROR)\b.*$| - .*$", "", name).strip()
