"""The first part of the result page: questions of users, each answered with a sentence and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import compress
from pathlib import Path
from typing import NamedTuple

from benchmarks import setting_quality
from benchmarks.bars import Groups, bars
from benchmarks.contestants import LABELS, PEERS
from benchmarks.summary import Summary
from server.client.bench import chart

NAMES: Mapping[str, str] = {
    "A": "one stream",
    "B": "16 streams",
    "B-mixed": "16 streams of mixed lengths",
    "C": "a prompt of 900 tokens",
    "C-512": "a prompt of 512 tokens",
    "D": "translation, greedy",
    "D-beam": "translation, 4 beams",
    "E": "texts of mixed lengths",
    "E-clients": "16 clients, one text each",
    "F": "texts of 128 tokens",
    "L": "one small request, ms",
}
"""Short description of each workload, by its name."""


class Question(NamedTuple):
    """A question of the page.

    file: name of the picture. text: what is measured. rows: workload, shape and precisions of each group of bars.
    """

    file: str
    title: str
    text: str
    unit: str
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]


_ALL, _LARGE = ("float32", "bfloat16", "int8"), ("bfloat16", "int8", "int4")
QUESTIONS = (
    Question(
        "one-stream",
        "How fast is one answer?",
        "One client reads a streamed answer of 128 tokens. The memory bandwidth limits the rate: each token reads all "
        "weights.",
        "tokens/s",
        (("A", "llama-135m", (*_ALL, "int4")), ("A", "llama-1b", _LARGE), ("A", "moe-1b", _LARGE)),
    ),
    Question(
        "many-streams",
        "How fast are sixteen answers at once?",
        "Sixteen clients read streamed answers at the same time. The rate is the sum over all of them.",
        "tokens/s",
        (("B", "llama-135m", (*_ALL, "int4")), ("B", "llama-1b", _LARGE), ("B", "moe-1b", _LARGE)),
    ),
    Question(
        "translation",
        "How fast is a translation?",
        "32 sentences are translated at once by a model of the size of opus-mt, greedily and with 4 beams.",
        "tokens/s",
        (("D", "marian-74m", ("float32", "int8")), ("D-beam", "marian-74m", ("float32", "int8"))),
    ),
    Question(
        "embedding",
        "How fast are embeddings?",
        "Texts of 8 to 256 tokens for a model of the size of MiniLM, and of 128 tokens for BERT-base.",
        "texts/s",
        (("E", "minilm-22m", _ALL), ("F", "bert-base", _ALL)),
    ),
)


def answers(summary: Summary, folder: Path, page_folder: Path) -> str:
    """The text with all questions that have results. Their pictures are written to `folder`.

    page_folder: directory of the page, to which the links to the pictures are relative.
    """
    parts = []
    for question in QUESTIONS:
        groups = _groups(summary, question)
        if groups:
            (folder / f"{question.file}.svg").write_text(bars(question.title, question.unit, groups))
            image = f"![{question.title}]({(folder / f'{question.file}.svg').relative_to(page_folder).as_posix()})"
            parts += [f"## {question.title}", f"{question.text} {_ahead(groups)}", image]
    quality = _quality(summary)
    if len(quality) > 1:
        title = "What does speed cost in quality?"
        text = (
            "The rate of one stream with a model of a billion parameters, beside the distance of the setting from "
            "float32 on real weights (mean KL divergence; further left is better): [quality.md](quality.md)."
        )
        picture = chart.chart("Quality against speed", "mean KL divergence", "tokens/s", quality, scatter=True)
        (folder / "quality-speed.svg").write_text(picture)
        image = f"![{title}]({(folder / 'quality-speed.svg').relative_to(page_folder).as_posix()})"
        parts += [f"## {title}", text, image]
    return "\n\n".join(parts)


def _groups(summary: Summary, question: Question) -> Groups:
    groups: dict[str, dict[str, float]] = {}
    several = len({workload for workload, _, _ in question.rows}) > 1
    for workload, shape, precisions in question.rows:
        for precision in precisions:
            rates = {
                LABELS.get(name, name): rate
                for name in ("http", *PEERS)
                if (rate := summary.rate(shape, precision, workload, name)) is not None
            }
            if len(rates) > 1 and LABELS["http"] in rates:
                what = f", {NAMES[workload].removeprefix('translation, ')}" if several and workload[0] == "D" else ""
                groups[f"{shape}, {precision}{what}"] = rates
    return groups


def _ahead(groups: Groups) -> str:
    """A sentence with the smallest and the largest ratio of Triptych's rate to the best peer's, over the groups."""
    ours = LABELS["http"]
    ratios = [values[ours] / max(rate for name, rate in values.items() if name != ours) for values in groups.values()]
    return f"Triptych over HTTP reaches {min(ratios):.2f} to {max(ratios):.2f} times the best peer."


def _quality(summary: Summary) -> dict[str, chart.Points]:
    """For each setting of Triptych and format of llama.cpp with a measured quality: its point (divergence, rate)."""
    distances = setting_quality.distances()
    found: dict[str, chart.Points] = {}
    for precision in _LARGE:
        for name in ("http", "llama.cpp", "llama.cpp-k"):
            rate = summary.rate("llama-1b", precision, "A", name)
            distance = setting_quality.distance_of(name, precision, summary.about["date"], distances)
            if rate is not None and distance:
                label = LABELS[name].replace(", HTTP", "").replace(" server", "")
                found[f"{label} {precision}"] = [(float(distance), rate)]
    return found


def side_by_side(main: Summary, others: Mapping[str, Summary]) -> str:
    """A table of the rates on several processors, each with its ratio to the best peer. Empty without common rows.

    A page that shares no row with this page has no column; a sentence names it.

    main: results of this page. others: results of other processors, by path of their page.
    """
    columns = {f"this page: {_short(main)}": main}
    columns |= {f"[{_short(other)}]({path})": other for path, other in others.items()}
    rows: list[list[str]] = []
    for shape in main.shapes():
        for precision in main.precisions(shape):
            for workload in (name for name in main.workloads(shape) if name in NAMES):
                cells = [_compared(summary, shape, precision, workload) for summary in columns.values()]
                if sum(map(bool, cells)) > 1:
                    rows.append([f"{NAMES[workload]}, {shape}, {precision}", *cells])
    if not rows:
        return ""
    text = "Rate over HTTP, and its ratio to the best peer on the same machine."
    filled = [any(cells) for cells in zip(*rows, strict=True)]
    if further := [name for name, has_rows in zip(columns, filled[1:], strict=True) if not has_rows]:
        text += f" Other workloads: {', '.join(further)}."
    head, *lines = (f"| {' | '.join(compress(cells, filled))} |" for cells in [["workload", *columns], *rows])
    return "\n".join(["## Processors side by side", "", text, "", head, "|---" * sum(filled) + "|", *lines])


def _short(summary: Summary) -> str:
    """Name of the processor, without its list of features, and date of a run."""
    return f"{summary.about['processor'].partition(';')[0].strip()}, {summary.about['date']}"


def _compared(summary: Summary, shape: str, precision: str, workload: str) -> str:
    key = (shape, precision, workload)
    ours, peer = summary.rate(*key, "http"), summary.best_peer(*key)
    if ours is None or workload == "L":
        return ""
    ratio = None if peer is None else summary.ratio((*key, "http"), (*key, peer))
    return f"{ours:,.0f}" if ratio is None else f"{ours:,.0f} ({ratio:.2f})"


def spelled(workloads: list[str]) -> Iterator[str]:
    """The column headings for workloads: the name of each and its short description."""
    return (f"{name}: {NAMES[name]}" if name in NAMES else name for name in workloads)
