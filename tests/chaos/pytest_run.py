"""Run existing tests as the check of a promise. Every test counts as one run."""

from __future__ import annotations

import io
import tempfile
import xml.etree.ElementTree as ElementTree
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.chaos.record import Record

REPOSITORY = Path(__file__).resolve().parents[2]
PYTEST = ("-q", "-p", "no:cacheprovider", "--tb=line")


def run_tests(record: Record, *tests: str) -> Record:
    """Run tests in this process, in which a bug may be planted. Each test counts as one run.

    tests: files or names of tests, as for pytest. Returns `record`.
    """
    with tempfile.TemporaryDirectory() as directory:
        report, output = Path(directory) / "report.xml", io.StringIO()
        with chdir(REPOSITORY), redirect_stdout(output), redirect_stderr(output):
            pytest.main([*PYTEST, f"--junitxml={report}", *tests])
        if not report.exists():
            record.must(False, f"the tests did not run: {output.getvalue()[-300:]}")
            return record
        for case in ElementTree.parse(report).iter("testcase"):
            record.runs += case.find("skipped") is None
            problem = case.find("failure") if case.find("failure") is not None else case.find("error")
            if problem is not None:
                record.must(False, f"{case.get('name')}: {(problem.get('message') or '')[:160]}")
    record.must(record.runs > 0, "no test ran")
    return record
