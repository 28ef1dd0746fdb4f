"""Write `docs/reliability-report.md` from the results of `python -m tests.chaos`."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from server.api.telemetry.telemetry import version
from tests.chaos.promises import PROMISES

_HEAD = """# Reliability report

Written by `make chaos`; do not edit. It measures the promises of Triptych under load, faults and bad input on real
server processes with the demo models, over real sockets. *Runs* counts how often a promise was tried, *worst case* is
the worst value of all runs with its limit. Each check ran a second time with a bug planted in the product, and has to
fail with it.

Measured with Triptych {version} on {date}: {machine}.

{passed} of {total} promises hold; {caught} of {controls} planted bugs were caught.{small}

| # | promise | asked | runs | worst case | holds | planted bug |
|---|---|---|---|---|---|---|
"""

_SMALL = "\n\n**Some rows were measured with small counts**: run `make chaos` for the figures."


EARLIER = (
    (
        "one `/rerank` with a query of 300 kB and 1,000 texts",
        "24 GB, killed",
        25,
        "/rerank (300 kB query",
    ),
    ("the same with 30 kB", "27 s, 3 GB", 25, "/rerank (30 kB query"),
    (
        "`/token_classify` of 200 kB, `stride` below the window",
        "1.2 s",
        25,
        "/token_classify (stride",
    ),
    ("log-probabilities of 64 prompts", "0.86 s, 788 MB", 25, "/generate (log-probabilities"),
    ("one text of 2 MB for `/translate`", "event loop 420 ms", 25, "/translate (one text"),
    ("1,000 texts of 120 sentences for `/translate`", "event loop 117 ms", 25, "/translate (1,000 texts"),
    ("1,280 connections at once: goodput", "0.73 of peak", 7, "goodput of 1280 at once"),
    ("1,280 connections at once: slowest refusal", "1.7 s", 7, "slowest refusal of 1280 at once"),
    ("long prompt, 512 texts and a new schema beside 16 streams", "3.9 times alone", 8, "p99 gap with a new schema"),
    ("worker stopped while loading", "never noticed", 26, "replaced after"),
    ("growth over mixed requests", "94 to 209 bytes a request", 24, "growth of the HTTP process"),
)
"""Figures of an earlier version: (case, figure, number of the promise, name of the measure or prefix of the detail)."""


def _now(record: Mapping[str, Any], name: str) -> str:
    found = [text for key, text in record.get("details", {}).items() if key.startswith(name)]
    found += [_measure(measure) for measure in record["measures"] if measure["what"] == name]
    return found[0] if found else "not measured"


def machine() -> str:
    """Description of the machine: processor, cores and memory, without the host name."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB of memory, Python {platform.python_version()}"


def write_report(path: Path, results: Mapping[str, Any]) -> None:
    """Write the page. results: content of the file of results; a result for each number of a promise."""
    rows, notes = [], []
    for promise in PROMISES:
        result = results.get(str(promise.number))
        if result is None:
            rows.append(f"| {promise.number} | {promise.title} | {promise.figure} | 0 | not measured | | |")
            continue
        record = result["record"]
        runs = f"{record['runs']:,} {record.get('unit', 'run')}s"
        rows.append(
            f"| {promise.number} | {promise.title} | {promise.figure} | {runs} | {_worst(record)} "
            f"| {'yes' if record['passed'] else '**no**'} | {_controls(result['controls'])} |"
        )
        if record["failures"]:
            notes.append(f"- {promise.number}: {_cell('; '.join(record['failures']))}")
    controls = [control for entry in results.values() for control in entry["controls"].values()]
    text = _HEAD.format(
        version=version(),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=machine(),
        passed=sum(entry["record"]["passed"] for entry in results.values()),
        total=len(PROMISES),
        caught=sum(map(is_caught, controls)),
        controls=len(controls),
        small=_SMALL if any(entry["scale"] != "full" for entry in results.values()) else "",
    )
    text += "\n".join(rows) + "\n"
    text += "\n## Cases that failed in an earlier version\n\n| case | then | now |\n|---|---|---|\n"
    for case, then, number, name in EARLIER:
        result = results.get(str(number))
        text += f"| {case} | {then} | {_now(result['record'], name) if result else 'not measured'} |\n"
    if notes:
        text += "\n## Failures\n\n" + "\n".join(notes) + "\n"
    text += "\n## Planted bugs\n\nWhat each check saw when its bug was planted:\n\n"
    for promise in PROMISES:
        for bug, control in results.get(str(promise.number), {}).get("controls", {}).items():
            failed = [_measure(measure) for measure in control["measures"] if not measure["passed"]]
            seen = "; ".join([*failed, *control["failures"][:2]]) or "nothing"
            text += f"- {promise.number}, `{bug}`: {_cell(seen)}\n"
    path.write_text(text, encoding="utf-8")


def is_caught(control: Mapping[str, Any]) -> bool:
    """Whether a check detected its planted bug: the run measured something and failed. control: record of the run."""
    return not control["passed"] and control["runs"] > 0


def _worst(record: Mapping[str, Any]) -> str:
    failures = [f"{record.get('num_failures', 1)} failures"] if record["failures"] else []
    return "; ".join([*map(_measure, record["measures"]), *failures]) or "no failure"


def _measure(one: Mapping[str, Any]) -> str:
    return f"{one['what']} {one['worst']:.3g} {one['unit']} ({'≥' if one['at_least'] else '≤'} {one['limit']:g})"


def _controls(controls: Mapping[str, Mapping[str, Any]]) -> str:
    seen = (f"`{bug}`: {'caught' if is_caught(control) else '**missed**'}" for bug, control in controls.items())
    return "; ".join(seen) or "not run"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
