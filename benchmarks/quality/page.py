"""Write docs/quality.md and its figures from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.quality.results import Results
from benchmarks.quality.sources import DECODERS, TITLES
from server.client.bench import chart

Row = dict[str, Any]

ENOUGH = 10_000
"""Tokens below which the page warns that differences may be noise."""

HEAD = """\
# Quality of reduced precisions

How far each setting of `--quantize` is from the model in float32, on real weights.
[`make quality`](../Makefile) measures it and writes this page. Speeds of quantized settings are worth reading only
beside these numbers.

- **Bits**: memory of all weights in bits for each parameter, token table and output head included.
- **KL**: Kullback-Leibler divergence of the next-token distribution from that of float32, in nats: mean, and 99th
  percentile over all tokens; ± is the standard error of the mean. Every token is predicted from the text before it.
  The smaller, the closer.
- **Same top**: tokens whose most probable next token is that of float32. **Perplexity**: of the text.
- The texts are pages of this documentation as they were in November 2026, the language reference and modules of
  Python, and a dialogue, in windows of 512 tokens.
- Rows of **llama.cpp** are computed by its own library (PyPI `xllamacpp`), in its formats, made by it from the same
  float32 weights. Its F32 row checks that both programs compute the same model.
- The published weights are stored in 4 bits. They lie on the grid of that format, which favours formats with the same
  blocks. So noise of half a step of the grid, up or down, is added to each weight first (seed 39). This is the model
  that all rows are compared with."""


def write(results: Results, page: Path) -> None:
    """Write the page. Its figures go to the folder of the results."""
    parts = [HEAD]
    for name in DECODERS:
        rows = results.models.get(name)
        if rows:
            parts.append(_decoder(name, rows, page))
        rows = results.models.get(f"{name}, undithered")
        if rows:
            parts.append(f"The same without noise, {_tokens(rows)}:\n\n{_table(rows)}")
    for name, rows in results.models.items():
        if any("median_cosine" in row for row in rows.values()):
            parts.append(_encoder(name, rows))
        elif any("exact" in row for row in rows.values()):
            parts.append(_translator(name, rows))
        elif name.partition(",")[0] not in DECODERS:
            parts.append(f"## Demo model `{name}`\n\nHeld-out texts, {_tokens(rows)}.\n\n{_table(rows)}")
    page.write_text("\n\n".join(parts) + "\n")


def _tokens(rows: dict[str, Row]) -> str:
    counts = sorted({row["tokens"] for row in rows.values()})
    text = " and ".join(f"{count:,} tokens" for count in counts)
    if counts[0] < ENOUGH:
        text += "; differences of 10% in the mean, and of 30% in the last percent, are noise"
    return text if len(counts) == 1 else f"{text}. Perplexities of different numbers of tokens are of different texts"


def _decoder(name: str, rows: dict[str, Row], page: Path) -> str:
    figure = page.parent / "quality" / f"{name}.svg"
    figure.parent.mkdir(parents=True, exist_ok=True)
    points = {_label(row): [(row["bits"], row["mean_kl"])] for row in rows.values() if row["bits"] < 12}
    text = f"## {TITLES[name]}\n\n{_tokens(rows)}.\n\n{_table(rows)}"
    if points:
        drawn = chart.chart("Divergence and size", "bits for each weight", "mean KL", points, scatter=True)
        figure.write_text(drawn)
        text += f"\n\n![Divergence and size](quality/{name}.svg)"
    types = [f"- {row['name']}: {row['types']}" for row in rows.values() if row.get("types") and row["name"] != "F32"]
    if types:
        text += (
            "\n\nTypes of the matrices of llama.cpp's formats. Rows that are no multiple of 256 inputs have no K types."
            f"\n\n{chr(10).join(types)}"
        )
    return text


def _label(row: Row) -> str:
    return f"{row['name']} ({'llama.cpp' if row['by'] == 'llama.cpp' else 'ours'})"


def _table(rows: dict[str, Row]) -> str:
    differ = len({row["tokens"] for row in rows.values()}) > 1
    lines = ["| setting | bits | mean KL | KL, 99% | same top | perplexity |", "|---|---|---|---|---|---|"]
    if differ:
        lines = [f"{lines[0]} tokens |", f"{lines[1]}---|"]
    for row in sorted(rows.values(), key=lambda row: (-row["bits"], row["mean_kl"])):
        name = f"llama.cpp {row['name']}" if row["by"] == "llama.cpp" else f"`{row['name']}`"
        error = f" ± {row['kl_error']:.5f}" if "kl_error" in row else ""
        tokens = f" {row['tokens']:,} |" if differ else ""
        lines.append(
            f"| {name} | {row['bits']:.2f} | {row['mean_kl']:.5f}{error} | {row['p99_kl']:.4f} | {row['same_top']:.1%} "
            f"| {row['perplexity']:.3f} |{tokens}"
        )
    return "\n".join(lines)


def _encoder(name: str, rows: dict[str, Row]) -> str:
    lines = [
        f"## Embeddings: {name}",
        "",
        "300 sentences: cosine of each vector with that of float32, and rankings of the other sentences by each one. "
        "**Same first ten**: members of the first ten that are the same. **Same order**: rankings whose first ten are "
        "the same in the same order.",
        "",
        "| setting | cosine, median | cosine, worst | same first ten | same first | same order |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(rows.values(), key=lambda row: -row["median_cosine"]):
        lines.append(
            f"| `{row['name']}` | {row['median_cosine']:.5f} | {row['least_cosine']:.5f} | {row['shared']:.1%} "
            f"| {row['same_first']:.1%} | {row['same_order']:.1%} |"
        )
    return "\n".join(lines)


def _translator(name: str, rows: dict[str, Row]) -> str:
    lines = [f"## Demo model `{name}`", "", "| setting | exact translations |", "|---|---|"]
    lines += [f"| `{row['name']}` | {row['exact']:.1%} of {row['tokens']:,} |" for row in rows.values()]
    return "\n".join(lines)
