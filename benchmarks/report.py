"""The result page, docs/benchmarks.md: `python -m benchmarks.report [results.json [benchmarks.md]]` writes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import goals, profile, questions, setting_quality
from benchmarks.contestants import LABELS
from benchmarks.plan import STREAMS
from benchmarks.process import REPOSITORY
from benchmarks.setting_quality import SETTINGS_OF_NOW
from benchmarks.summary import Key, Summary
from benchmarks.workloads import FULL
from server.client.bench import chart

MAIN_PAGE = REPOSITORY / "docs" / "benchmarks.md"

DECODERS = ("llama", "moe", "gpt2")
"""Prefixes of the names of decoder shapes. The page shows the quality of settings for decoders only."""

WORKLOADS = """\
- **A**: one stream with {prompt} prompt tokens and {new} new tokens.
- **B**: 16 concurrent streams as in A. **streams-N**: N concurrent streams as in A.
- **B-mixed**: {mixed} requests, 16 in flight. Prompts and answers have 16 to {longest} tokens.
- **C**: one prompt of {prefill} tokens. The rate counts prompt tokens. **C-N**: a prompt of N tokens.
- **D**: {sentences} sentences of 8 to 60 tokens, each translated into {sentence_new} tokens with greedy decoding.
  **D-beam**: the same with 4 beams.
- **E**: {texts} texts of 8 to {longest_text} tokens, 8 texts per call. **E-clients**: 16 clients, one text per call.
- **F**: {bert} texts of 128 tokens, 16 texts per call.
- **L**: {single} small requests, one after the other: a text of {short_text} tokens, or a sentence of {short_new}
  tokens translated into {short_new} tokens. The value is the time of a request in milliseconds: median (p99)."""


PROFILE = """\
Milliseconds of a workload in the engine of Triptych, without HTTP, with every operation timed:

- **products**: matrix products of the layers. **output head**: the product that computes the logits.
- **their floor, its floor**: the least time that the machine needs for these products. For each product of each step,
  it is the larger of weight bytes divided by memory bandwidth and operations divided by the peak rate of oneDNN. Both
  are measured just before and just after the workload.
- **floor of attention**, for encoders only: the operations of its two matrix products divided by the same peak rate.
- **small**: norms, rotary positions, cache writes, rounding to int8, and sums.
- **selection**: selection of the next tokens. **rest**: Python, embeddings, and building of batches."""


def write(results: Path, page: Path) -> None:
    """Write the result page and its charts from the results of a run.

    results: the results.json of a run. The charts go to its directory.
    page: path of the Markdown file to write.
    """
    summary = Summary(results)
    parts = [
        _head(summary),
        questions.answers(summary, results.parent, page.parent),
        questions.side_by_side(summary, _other_processors(page.parent)),
        _conditions(summary, page),
        _goals(summary),
    ]
    parts += [_table(summary, shape) for shape in summary.shapes()]
    parts += [
        _charts(summary, results.parent, page.parent),
        _profile(summary),
        _experiments(results.parent),
        _failures(summary),
    ]
    page.write_text("\n\n".join(part for part in parts if part) + "\n")


def _head(summary: Summary) -> str:
    processor, cores = summary.about["processor"].partition(";")[0].strip(), summary.about["cores"]
    return f"""# Benchmarks

Triptych beside other engines on one machine ({processor}, {cores} cores), each at its best setting. Pictures answer
the usual questions. [The conditions](#how-it-was-measured), the goals and all tables follow. `make bench` writes this
page, and `make bench-quick` its main rows. Do not edit it by hand."""


def _conditions(summary: Summary, page: Path) -> str:
    about = summary.about
    rates = ", ".join(f"{name} {value / 1e9:,.0f}" for name, value in about["operations_per_second"].items())
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"""## How it was measured

- Every contestant runs in its own process with {about["threads"]} threads.
  Contestants run one at a time, in turns, for several rounds.
- Values are medians over {_rounds(summary)}; short workloads have more rounds. A ratio is the median of the ratios
  of all rounds. A peer that is less than half as fast as the best peer is measured once.
- Weights are random. Decoding is greedy, and the number of new tokens is fixed. Prompts differ between rounds.
- Rates are tokens or texts per second.
{settings_line(about["date"], page)}
{WORKLOADS.format(**vars(FULL) | about["scale"])}

| machine | |
|---|---|
| processor | {about["processor"]}{_limit(about)} |
| cores, memory | {about["cores"]}, {about["memory_bytes"] / 2**30:.0f} GiB |
| memory bandwidth (read) | {_bandwidth(summary)} |
| peak of matrix products (oneDNN) | {rates} G operations/s, measured in this run |
| system | {about["system"]}; load average at start {about["load_average"]:.1f} |
| versions | {versions} |
| date | {about["date"]} |"""


def _other_processors(folder: Path) -> dict[str, Summary]:
    """The results of other processors in the directories beside the page, by the path of their pages."""
    return {
        f"{path.parents[1].name}/benchmarks.md": Summary(path)
        for path in sorted(folder.glob("*/benchmarks/results.json"))
    }


def settings_line(date: str, page: Path = MAIN_PAGE) -> str:
    """Return the line that says which settings of `--quantize` Triptych's rows int8 and int4 have.

    date: day of the run, as YYYY-MM-DD. page: path of the page with the line, for its link.
    """
    are = "are the settings that are now called `int8-fast` and `int4-128`"
    if date >= SETTINGS_OF_NOW:
        are = "are the settings of these names in `--quantize`"
    link = Path(os.path.relpath(MAIN_PAGE.with_name("quality.md"), page.resolve().parent)).as_posix()
    return f"""- The rows int8 and int4 of Triptych {are}. llama.cpp has
  Q8_0 and Q4_0 there. **KL** is the mean divergence of the setting from float32 on real weights (SmolLM2-135M), because
  the random weights of these models have no quality: [quality of reduced precisions]({link}).
"""


def _limit(about: Mapping[str, Any]) -> str:
    isa = about.get("isa")
    return f". Triptych was limited to the instruction set {isa}" if isa else ""


def _rounds(summary: Summary) -> str:
    fewest, most = summary.rounds()
    return f"{most} rounds" if fewest == most else f"{fewest} to {most} rounds"


def _bandwidth(summary: Summary) -> str:
    """Sentence about the memory bandwidth of the machine: best value at the start of the run, and range during it."""
    found = [
        run["read_bytes_per_second"] / 1e9
        for entry in summary.entries
        for run in entry["runs"]
        if "read_bytes_per_second" in run
    ]
    later = f"; medians of {min(found):.0f} to {max(found):.0f} GB/s around the runs of A" if found else ""
    return f"best value at start {summary.about['read_bytes_per_second'] / 1e9:.1f} GB/s{later}"


def _goals(summary: Summary) -> str:
    rows = ["## Goals", "", "The ratio compares the measured value with the goal: 1 or more means reached.", ""]
    rows += ["| quantity | goal | measured | ratio | |", "|---|---|---|---|---|"]
    for line in goals.lines(summary):
        ratio = "–" if line.ratio is None else f"{line.ratio:.2f}"
        rows.append(f"| {line.quantity} | {line.goal} | {line.measured} | {ratio} | {line.verdict} |")
    return "\n".join(rows)


def _table(summary: Summary, shape: str) -> str:
    """Table of all results for one shape.

    For contestants that stream tokens, it also shows time to first token and inter-token latency. Contestants without
    any result are not in it; `_failures` lists them.
    """
    workloads = [name for name in summary.workloads(shape) if name != "start" and not name.startswith("streams-")]
    if not workloads:
        return ""
    heads = " | ".join(questions.spelled(workloads))
    rows = [f"## {shape}", "", f"| contestant | precision | KL | {heads} |"]
    rows.append("|---" * (3 + len(workloads)) + "|")
    distances = setting_quality.distances() if shape.startswith(DECODERS) else {}
    for precision in summary.precisions(shape):
        names = [name for workload in workloads for name in summary.contestants(shape, precision, workload)]
        for name in dict.fromkeys(names):
            cells = [_cell(summary, shape, precision, workload, name) for workload in workloads]
            if any(cells):
                distance = setting_quality.distance_of(name, precision, summary.about["date"], distances)
                rows.append(f"| {LABELS.get(name, name)} | {precision} | {distance} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _cell(summary: Summary, shape: str, precision: str, workload: str, name: str) -> str:
    key = (shape, precision, workload, name)
    rate = summary.rate(*key)
    if rate is None:
        return ""
    if workload == "L":
        return _latency(summary, key)
    text = f"**{rate:,.0f}**" if rate >= 10 else f"**{rate:.2f}**"
    first, gap_p99 = summary.median(*key, "first_seconds_p50"), summary.median(*key, "gaps_p99")
    gap = summary.median(*key, "gaps_p50")
    if first is not None and gap is not None and gap_p99 is not None:
        text += f" (TTFT {first * 1e3:.0f}, ITL {gap * 1e3:.1f}, p99 {gap_p99 * 1e3:.0f} ms)"
    latency = summary.median(*key, "latencies_p99")
    return text if latency is None else f"{text} (p99 {latency * 1e3:.0f} ms)"


def _latency(summary: Summary, key: Key) -> str:
    """Median and 99th percentile of the time of a request, in milliseconds."""
    median, p99 = (summary.median(*key, f"latencies_{name}") for name in ("p50", "p99"))
    return "" if median is None or p99 is None else f"**{median * 1e3:.1f}** ({p99 * 1e3:.1f})"


def _charts(summary: Summary, folder: Path, page_folder: Path) -> str:
    rates: dict[str, chart.Points] = {}
    gaps: dict[str, chart.Points] = {}
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
            medians = [
                (count, summary.median("llama-135m", precision, f"streams-{count}", name, "gaps_p50"))
                for count in STREAMS
            ]
            gaps[label] = [(count, seconds * 1e3) for count, seconds in medians if seconds is not None]
    contexts = {
        f"{curve['precision']}, {curve['rows']} rows": list(zip(curve["contexts"], curve["step_ms"], strict=True))
        for curve in summary.sections.get("context", [])
    }
    drawn = [
        ("throughput", "Throughput, llama-135m", "streams", "tokens/s", rates),
        ("inter-token", "Median inter-token latency, llama-135m", "streams", "ms", gaps),
        ("context", "Time of a decode step, llama-135m", "tokens of context", "ms", contexts),
    ]
    parts = ["## Scaling"]
    for name, title, x_name, y_name, series in drawn:
        if any(series.values()):
            (folder / f"{name}.svg").write_text(chart.chart(title, x_name, y_name, series))
            parts.append(f"![{title}]({(folder / f'{name}.svg').relative_to(page_folder).as_posix()})")
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _profile(summary: Summary) -> str:
    found = summary.sections.get("profile", [])
    if not found:
        return ""
    rows = ["## Where the time goes", "", PROFILE, ""]
    columns = ["workload", "ms", "products", "their floor", "output head", "its floor", "attention", "its floor"]
    columns += ["small", "selection", "rest"]
    rows += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in found:
        cells = [row["seconds"], *row["products"], *row["head"], *row["attention"], row["small"], row["choice"]]
        numbers = " | ".join("" if cell is None else f"{cell * 1e3:,.0f}" for cell in [*cells, profile.rest(row)])
        rows.append(f"| {row['workload']}, {row['shape']}, {row['precision']} | {numbers} |")
    return "\n".join(rows)


def _experiments(folder: Path) -> str:
    """The hand-written notes about the results, from `experiments.md` in the directory of the results."""
    page = folder / "experiments.md"
    return page.read_text().strip() if page.exists() else ""


def _failures(summary: Summary) -> str:
    """Table of the contestants without a result, each with the reason."""
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for entry in summary.entries:
        if "error" in entry:
            models = reasons.setdefault((entry["contestant"], entry["error"]), {})
            models.setdefault(f"{entry['shape']} {entry['precision']}", []).append(entry["workload"])
    if not reasons:
        return ""
    rows = ["## Not measured", "", "| contestant | workloads | reason |", "|---|---|---|"]
    for (name, reason), models in reasons.items():
        listed = "; ".join(f"{model}: {', '.join(workloads)}" for model, workloads in models.items())
        rows.append(f"| {LABELS.get(name, name)} | {listed} | {reason.replace('|', '/')} |")
    return "\n".join(rows)


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    write(
        given[0] if given else Path("docs/benchmarks/results.json"),
        given[1] if given[1:] else Path("docs/benchmarks.md"),
    )
