"""Run existing tests as a check, with or without a planted bug: every test is one run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.chaos import server
from tests.chaos.record import Record

REPOSITORY = Path(__file__).resolve().parents[2]
PYTEST = ("-q", "-p", "no:cacheprovider", "--tb=line")


def run_tests(record: Record, *tests: str) -> Record:
    """Run tests. Each test counts as a run, each failed test as a failure."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        arguments = [*PYTEST, f"--junitxml={report}", *tests]
        start = ["pytest"] if server.planted is None else ["tests.chaos.planted", server.planted, "--", "pytest"]
        done = subprocess.run(
            [sys.executable, "-m", *start, *arguments], cwd=REPOSITORY, capture_output=True, text=True
        )
        if not report.exists():
            record.must(False, f"the tests did not run: {(done.stdout + done.stderr)[-300:]}")
            return record
        for case in ElementTree.parse(report).iter("testcase"):
            record.runs += case.find("skipped") is None
            problem = case.find("failure") if case.find("failure") is not None else case.find("error")
            if problem is not None:
                record.must(False, f"{case.get('name')}: {(problem.get('message') or '')[:160]}")
    record.must(record.runs > 0, "no test ran")
    return record
