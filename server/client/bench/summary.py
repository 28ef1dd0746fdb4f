"""Statistics of one load level from its samples, and the table that compares all levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.client.bench.load import Sample, span_seconds

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Level:
    """The result of one load level. All times are in seconds.

    load: name of the load level, such as `4 requests/s` or `16 at a time`.
    samples: samples of all requests, without the warm-up.
    """

    load: str
    samples: Sequence[Sample]

    @property
    def succeeded(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.error is None]

    @property
    def errors(self) -> dict[str, int]:
        """Number of failed requests, by the class of the failure, the most frequent first."""
        return dict(Counter(sample.error for sample in self.samples if sample.error is not None).most_common())

    @property
    def counted_by(self) -> str:
        """How output tokens are counted: `usage` if the server reported all numbers, else `events`."""
        return "events" if any(sample.completion_tokens is None for sample in self.succeeded) else "usage"

    def output_tokens(self) -> int:
        """Number of output tokens in all complete answers. An answer without usage counts one token per event."""
        return sum(
            len(sample.times) if sample.completion_tokens is None else sample.completion_tokens
            for sample in self.succeeded
        )

    def prompt_tokens(self) -> int:
        return sum(sample.prompt_tokens or 0 for sample in self.succeeded)

    def cached_share(self) -> float | None:
        """Share of the prompt tokens that the server found in its prefix cache; None if no answer reports it."""
        counted = [sample for sample in self.succeeded if sample.cached_tokens is not None and sample.prompt_tokens]
        total = sum(sample.prompt_tokens or 0 for sample in counted)
        return sum(sample.cached_tokens or 0 for sample in counted) / total if total else None

    def first_token_seconds(self) -> list[float]:
        return [sample.times[0] - sample.due for sample in self.succeeded if sample.times]

    def gap_seconds(self) -> list[float]:
        """Seconds between consecutive parts of an answer, for all complete answers."""
        return [
            after - before
            for sample in self.succeeded
            for before, after in zip(sample.times, sample.times[1:], strict=False)
        ]

    def latency_seconds(self) -> list[float]:
        return [sample.ended - sample.due for sample in self.succeeded]

    def late_seconds(self) -> list[float]:
        """Delay between the due time and the sending of each request. Large values mean a bottleneck in the client."""
        return [sample.sent - sample.due for sample in self.samples]

    def as_json(self) -> dict[str, Any]:
        seconds = span_seconds(self.samples)
        return {
            "load": self.load,
            "seconds": seconds,
            "requests": len(self.samples),
            "succeeded": len(self.succeeded),
            "errors": self.errors,
            "requests_per_second": len(self.succeeded) / seconds,
            "output_tokens_per_second": self.output_tokens() / seconds,
            "prompt_tokens": self.prompt_tokens(),
            "cached_prompt_share": self.cached_share(),
            "output_tokens": self.output_tokens(),
            "output_tokens_counted_by": self.counted_by,
            "first_token_seconds": spread(self.first_token_seconds()),
            "inter_token_seconds": spread(self.gap_seconds()),
            "latency_seconds": spread(self.latency_seconds()),
            "sent_late_seconds": spread(self.late_seconds()),
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of the values, interpolated between neighbours. percent: from 0 to 100."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return the mean, the percentiles and the maximum of some values, by name; None if there are no values."""
    if not values:
        return None
    named = {f"p{percent}": percentile(values, percent) for percent in PERCENTILES}
    return {"mean": sum(values) / len(values), **named, "max": max(values)}


def spreads(values: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float] | None]:
    """Apply `spread` to each list of values. Names of the lists stay the same."""
    return {name: spread(seconds) for name, seconds in values.items()}


def table(levels: Sequence[Level]) -> str:
    """Return the results as a text table with one column per load level. Latencies are in milliseconds."""
    rows: list[tuple[str, list[str]]] = [("load", []), ("requests", []), ("failed", []), ("requests/s", [])]
    rows += [("output tokens/s", []), ("output tokens per answer", []), ("prompt tokens from the cache", [])]
    for name in ("first token", "inter-token", "whole answer"):
        rows += [(f"{name}, ms, p{percent}", []) for percent in PERCENTILES]
    for level in levels:
        seconds = span_seconds(level.samples)
        succeeded, tokens = len(level.succeeded), level.output_tokens()
        cells = [
            level.load,
            str(len(level.samples)),
            str(len(level.samples) - succeeded),
            f"{succeeded / seconds:,.2f}",
        ]
        cells += [f"{tokens / seconds:,.1f}", f"{tokens / succeeded:,.1f}"] if tokens else ["-", "-"]
        cached = level.cached_share()
        cells.append(f"{cached:.1%}" if cached else "-")
        for values in (level.first_token_seconds(), level.gap_seconds(), level.latency_seconds()):
            cells += [f"{percentile(values, percent) * 1000:,.1f}" if values else "-" for percent in PERCENTILES]
        for (_, row), cell in zip(rows, cells, strict=True):
            row.append(cell)
    shown = [(name, cells) for name, cells in rows if set(cells) != {"-"}]
    first = max(len(name) for name, _ in shown)
    widths = [max(len(cells[column]) for _, cells in shown) for column in range(len(levels))]
    lines = [
        f"{name:<{first}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for name, cells in shown
    ]
    return "\n".join([*lines, *_notes(levels)])


def _notes(levels: Sequence[Level]) -> list[str]:
    notes = []
    for level in levels:
        for name, count in level.errors.items():
            said = next((sample.message for sample in level.samples if sample.error == name and sample.message), "")
            notes.append(f"{level.load}: {count} failed: {said or name}")
        late = percentile(level.late_seconds(), 99)
        if late > 0.01:
            notes.append(
                f"{level.load}: requests were sent up to {late * 1000:,.0f} ms late (p99); latencies include it"
            )
        if level.output_tokens() and level.counted_by == "events":
            notes.append(f"{level.load}: the server sent no usage; output tokens are events")
    return notes
