"""The page that tells what was measured: `python -m benchmarks.report [results.json [benchmarks.md]]`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks import goals, plot, profile
from benchmarks.contestants import LABELS
from benchmarks.plan import STREAMS
from benchmarks.summary import Summary

WORKLOADS = """\
- **A**: one stream, {prompt} prompt and {new} new tokens. **B**: 16 streams of A at once. **C**: a prompt of {prefill}
  tokens, prompt tokens per second. **streams-N**: N streams of A at once.
- **B-mixed**: {mixed} requests, prompts and answers of 16 to {longest} tokens, 16 in flight.
- **D**: {sentences} sentences of 8 to 60 tokens translated into {sentence_new} tokens each, greedy and with 4 beams.
- **E**: {texts} texts of 8 to {longest_text} tokens in calls of 8. **E-clients**: 16 clients, one text a call.
- **F**: {bert} texts of 128 tokens in calls of 16."""


PROFILE = """\
Milliseconds of a workload in our engine, in process, with every operation timed. Small: norms, rotary positions,
writing the cache, rounding to int8, sums. Choice: of tokens. Rest: Python, embeddings, batches. A floor is bytes of
weights over the bandwidth (measured just before and after) or operations over the peak, whichever is longer, for each
product of each step."""


def write(results: Path, page: Path) -> None:
    """The page, and the charts in the directory of the results."""
    summary = Summary(results)
    parts = [_head(summary), _goals(summary)]
    parts += [_table(summary, shape) for shape in summary.shapes()]
    parts += [
        _charts(summary, results.parent, page.parent),
        _profile(summary),
        _tried(results.parent),
        _failures(summary),
    ]
    page.write_text("\n\n".join(part for part in parts if part) + "\n")


def _head(summary: Summary) -> str:
    about = summary.about
    rates = ", ".join(f"{name} {value / 1e9:,.0f}" for name, value in about["operations_per_second"].items())
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"""# Benchmarks

Made by `make bench` (`make bench-quick` for the main rows): do not edit. Every contestant has a process of its own
and {about["threads"]} threads, only one works at a time, and they take turns round after round. Figures are medians
over {_rounds(summary)}, more of short workloads; ratios are medians of the rounds' own ratios. A peer
that is less than half as fast as the best one is asked once. Weights are random, answers are greedy and of fixed
length, prompts differ from round to round. Rates are tokens or texts per second.

{WORKLOADS.format(**about["scale"])}

| the machine | |
|---|---|
| processor | {about["processor"]} |
| cores, memory | {about["cores"]}, {about["memory_bytes"] / 2**30:.0f} GiB |
| memory bandwidth, reading | {_bandwidth(summary)} |
| products (oneDNN) | {rates} G operations/s, measured in this run |
| system | {about["system"]}; load average at the start {about["load_average"]:.1f} |
| versions | {versions} |
| date | {about["date"]} |"""


def _rounds(summary: Summary) -> str:
    fewest, most = summary.rounds()
    return f"{most} rounds" if fewest == most else f"{fewest} to {most} rounds"


def _bandwidth(summary: Summary) -> str:
    """At the start of the run, and how it changed."""
    found = [
        run["read_bytes_per_second"] / 1e9
        for entry in summary.entries
        for run in entry["runs"]
        if "read_bytes_per_second" in run
    ]
    later = f"; usually {min(found):.0f} to {max(found):.0f} beside runs of A" if found else ""
    return f"{summary.about['read_bytes_per_second'] / 1e9:.1f} GB/s at best, at the start{later}"


def _goals(summary: Summary) -> str:
    rows = ["## Goals", "", "The ratio is measured over wanted: 1 reaches the goal.", ""]
    rows += ["| what | goal | measured | ratio | |", "|---|---|---|---|---|"]
    for line in goals.lines(summary):
        ratio = "–" if line.ratio is None else f"{line.ratio:.2f}"
        rows.append(f"| {line.what} | {line.goal} | {line.measured} | {ratio} | {line.verdict} |")
    return "\n".join(rows)


def _table(summary: Summary, shape: str) -> str:
    """All that ran on a shape; where tokens were seen as they came, the time to the first and between them. Who ran
    nothing of it is told of at the end of the page."""
    workloads = [name for name in summary.workloads(shape) if name != "start" and not name.startswith("streams-")]
    if not workloads:
        return ""
    rows = [f"## {shape}", "", "| contestant | precision | " + " | ".join(workloads) + " |"]
    rows.append("|---" * (2 + len(workloads)) + "|")
    for precision in summary.precisions(shape):
        names = [name for workload in workloads for name in summary.contestants(shape, precision, workload)]
        for name in dict.fromkeys(names):
            cells = [_cell(summary, shape, precision, workload, name) for workload in workloads]
            if any(cells):
                rows.append(f"| {LABELS.get(name, name)} | {precision} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _cell(summary: Summary, shape: str, precision: str, workload: str, name: str) -> str:
    key = (shape, precision, workload, name)
    rate = summary.rate(*key)
    if rate is None:
        return ""
    text = f"**{rate:,.0f}**" if rate >= 10 else f"**{rate:.2f}**"
    first, late = summary.median(*key, "first_seconds_p50"), summary.median(*key, "gaps_p99")
    middle = summary.median(*key, "gaps_p50")
    if first is not None and middle is not None and late is not None:
        text += f" (first {first * 1e3:.0f}, then {middle * 1e3:.1f}, p99 {late * 1e3:.0f} ms)"
    latency = summary.median(*key, "latencies_p99")
    return text if latency is None else f"{text} (p99 {latency * 1e3:.0f} ms)"


def _charts(summary: Summary, folder: Path, page_folder: Path) -> str:
    rates: dict[str, plot.Points] = {}
    gaps: dict[str, plot.Points] = {}
    for precision in summary.precisions("llama-135m"):
        for name in ("http", "ours", "openvino-genai"):
            points = [
                (
                    count,
                    summary.entry("llama-135m", precision, f"streams-{count}", name)
                    and summary.rate("llama-135m", precision, f"streams-{count}", name),
                )
                for count in STREAMS
            ]
            label = f"{LABELS.get(name, name).removeprefix('Triptych, ')} {precision}"
            rates[label] = [(count, rate) for count, rate in points if rate is not None]
            late = [
                (count, summary.median("llama-135m", precision, f"streams-{count}", name, "gaps_p50"))
                for count in STREAMS
            ]
            gaps[label] = [(count, seconds * 1e3) for count, seconds in late if seconds is not None]
    contexts = {
        f"{curve['precision']}, {curve['rows']} rows": list(zip(curve["contexts"], curve["step_ms"], strict=True))
        for curve in summary.sections.get("context", [])
    }
    drawn = [
        ("throughput", "Throughput, llama-135m", "streams", "tokens/s", rates),
        ("inter-token", "Median inter-token latency, llama-135m", "streams", "ms", gaps),
        ("context", "Time of a decode step, llama-135m", "tokens of context", "ms", contexts),
    ]
    parts = ["## As work grows"]
    for name, title, x_name, y_name, series in drawn:
        if any(series.values()):
            (folder / f"{name}.svg").write_text(plot.chart(title, x_name, y_name, series))
            parts.append(f"![{title}]({(folder / f'{name}.svg').relative_to(page_folder).as_posix()})")
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _profile(summary: Summary) -> str:
    found = summary.sections.get("profile", [])
    if not found:
        return ""
    rows = ["## Where the time goes", "", PROFILE, ""]
    rows += ["| workload | ms | products | their floor | output head | its floor | attention | small | choice | rest |"]
    rows += ["|---" * 10 + "|"]
    for one in found:
        (products, floor), (head, head_floor) = one["products"], one["head"]
        cells = [one["seconds"], products, floor, head, head_floor, one["attention"], one["small"], one["choice"]]
        numbers = " | ".join(f"{seconds * 1e3:,.0f}" for seconds in [*cells, profile.rest(one)])
        rows.append(f"| {one['workload']}, {one['shape']}, {one['precision']} | {numbers} |")
    return "\n".join(rows)


def _tried(folder: Path) -> str:
    """What somebody wrote about the results of that directory."""
    page = folder / "tried.md"
    return page.read_text().strip() if page.exists() else ""


def _failures(summary: Summary) -> str:
    """Who did not take part in what, and why."""
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for entry in summary.entries:
        if "error" in entry:
            models = reasons.setdefault((entry["contestant"], entry["error"]), {})
            models.setdefault(f"{entry['shape']} {entry['precision']}", []).append(entry["workload"])
    if not reasons:
        return ""
    rows = ["## Not measured", "", "| contestant | what | why |", "|---|---|---|"]
    for (name, why), models in reasons.items():
        what = "; ".join(f"{model}: {', '.join(workloads)}" for model, workloads in models.items())
        rows.append(f"| {LABELS.get(name, name)} | {what} | {why.replace('|', '/')} |")
    return "\n".join(rows)


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    write(
        given[0] if given else Path("docs/benchmarks/results.json"),
        given[1] if given[1:] else Path("docs/benchmarks.md"),
    )
