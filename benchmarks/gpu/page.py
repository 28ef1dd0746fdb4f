"""Tables of the results of `benchmarks.gpu`, and those of `docs/gpu.md`:

    python -m benchmarks.gpu.page RESULTS ...     merges files of results, and replaces the tables of the page

The results of all runs are kept in docs/gpu/results.json. docs/gpu/published.json has the figures of other servers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import results
from benchmarks.gpu.device import Limits
from benchmarks.gpu.goals import GOALS
from benchmarks.gpu.results import Results
from benchmarks.gpu.row import Result, Setup
from benchmarks.gpu.stages import KERNELS, STAGES, stage_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, RESULTS, PUBLISHED = DOCS / "gpu.md", DOCS / "gpu" / "results.json", DOCS / "gpu" / "published.json"
HEADER = "| measured | card | value | share | goal | note |\n|---|---|---|---|---|---|"
NOT_MEASURED = "not measured"
_NO_LIMITS = Limits("cuda", "bfloat16", 1.0, 1.0)


def row_names(setup: Setup) -> dict[str, list[str]]:
    """Names of the rows of each stage, by stage. Computes nothing."""
    return {stage: [row.name for row in stage_of(stage)(setup, _NO_LIMITS)] for stage in STAGES}


def tables(found: Results, names: Mapping[str, Sequence[str]]) -> str:
    """Tables with a row for each row and device: the measured ones, those that have a goal, and those of peers.

    found: results by device. names: names of the rows by stage.
    """
    known = {name for run in found.values() for name in run["rows"]}
    groups = dict.fromkeys(
        entry.group for stage, entry in STAGES.items() if entry.group != KERNELS or known.intersection(names[stage])
    )
    return "\n\n".join(_table(group, found, names) for group in groups)


def _table(group: str, found: Results, names: Mapping[str, Sequence[str]]) -> str:
    lines, missing = [], 0
    for stage, entry in STAGES.items():
        if entry.group != group:
            continue
        for name in names[stage]:
            rows = list(_rows(name, found))
            lines += rows
            if not rows and (name in GOALS or entry.is_listed):
                lines.append(_line(name, "", NOT_MEASURED, "", str(GOALS.get(name, "")), ""))
            elif not rows:
                missing += 1
    text = f"### {group}\n\n{HEADER}\n" + "\n".join(lines)
    return text + (f"\n\n{missing} more rows, without a goal, are not measured." if missing else "")


def _rows(name: str, found: Results) -> Iterator[str]:
    for device, run in found.items():
        entry = run["rows"].get(name)
        if entry is None:
            continue
        goal = GOALS.get(name)
        if entry["state"] != "measured":
            text = f"{entry['state']}: {entry['error']}"
            yield _line(name, device, text, "", "" if goal is None else str(goal), entry["date"])
            continue
        result = Result(**entry["result"])
        share = "" if result.share is None else _share(result.share, goal is not None and goal.unit == "times")
        value = f"{_short(result.value)} {result.unit}".strip()
        if goal is not None and goal.is_reached(result):
            share, value = (f"**{share}**", value) if goal.unit in ("%", "times") else (share, f"**{value}**")
        note = "; ".join(part for part in (result.note, entry["date"]) if part)
        yield _line(name, device, value, share, "" if goal is None else str(goal), note)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _share(share: float, is_factor: bool) -> str:
    if is_factor or share > 1:
        return f"{share:.2f} times"
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def limits_line(found: Results) -> str:
    """One line for each device: its limits and the versions of its software."""
    lines = []
    for device, run in found.items():
        limits, described = run["limits"], run["device"]
        versions = ", ".join(f"{name} {described[name]}" for name in ("torch", "cuda", "triton") if name in described)
        lines.append(
            f"- **{device}**: a copy moves {limits['bytes_per_second'] / 1e12:.2f} TB/s, and a large matrix product in "
            f"{limits['dtype']} reaches {limits['operations_per_second'] / 1e12:,.0f} TFLOP/s ({versions})."
        )
    return "\n".join(lines)


def published(entries: Sequence[Mapping[str, Any]]) -> str:
    """The table of figures that other projects have published about their servers."""
    lines = ["| server | card | model | figure | conditions | source |", "|---|---|---|---|---|---|"]
    for entry in entries:
        cells = [str(entry[name]) for name in ("server", "card", "model", "figure", "conditions")]
        lines.append(_line(*cells, f"[published]({entry['source']}), {entry['published']}"))
    return "\n".join(lines)


def page(text: str, found: Results, entries: Sequence[Mapping[str, Any]]) -> str:
    """Replace the tables in the text of the page. Raises ValueError if the comment around a table is missing."""
    made = {
        "limits": limits_line(found),
        "results": tables(found, row_names(Setup(Path(), Path()))),
        "published": published(entries),
    }
    for name, content in made.items():
        begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
        before, mark, rest = text.partition(begin)
        _, other_mark, after = rest.partition(end)
        if not mark or not other_mark:
            raise ValueError(f"the page has no marks of the table {name!r}")
        text = f"{before}{begin}{content}{end}{after}"
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge files of results into docs/gpu/results.json, and write the page. arguments: paths of the files."""
    files = [Path(file) for file in (sys.argv[1:] if arguments is None else arguments)]
    for file in files:
        if not file.exists():
            raise SystemExit(f"error: there is no file {file}")
    found = results.read([RESULTS, *files])
    results.write(RESULTS, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    results.write(PAGE, page(PAGE.read_text(), found, json.loads(PUBLISHED.read_text())))


if __name__ == "__main__":
    main()
