"""Goals of the rows of `benchmarks.gpu`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from benchmarks.gpu.row import Result

Unit = Literal["%", "times", "ms", "µs", "tokens/s"]


class Goal(NamedTuple):
    """A goal of a row.

    bound: the value to reach. unit: `%` and `times` are goals of the share, all others are goals of the value.
    is_most: whether the value must not exceed the bound, as for durations; otherwise it must not be below.
    """

    bound: float
    unit: Unit
    is_most: bool = False

    def __str__(self) -> str:
        bound = f"{self.bound:,g}{'%' if self.unit == '%' else f' {self.unit}'}"
        return f"{'≤' if self.is_most else '≥'} {bound}"

    def is_reached(self, result: Result) -> bool:
        """Whether a result reaches the goal. A result without a share reaches no goal of a share."""
        found: float | None = result.value
        if self.unit in ("%", "times"):
            found = None if result.share is None else result.share * (100 if self.unit == "%" else 1)
        if found is None:
            return False
        return found <= self.bound if self.is_most else found >= self.bound


def _least(unit: Unit, bounds: Mapping[str, float]) -> dict[str, Goal]:
    return {row: Goal(bound, unit) for row, bound in bounds.items()}


def _most(unit: Unit, bounds: Mapping[str, float]) -> dict[str, Goal]:
    return {row: Goal(bound, unit, is_most=True) for row, bound in bounds.items()}


GOALS: Mapping[str, Goal] = {
    # Streams: decode rate in the engine as a share of the step's, and over HTTP as a share of the engine's.
    **_least("%", {f"{shape}, engine, {rows} streams": 95 for shape in ("llama-1b", "llama-8b") for rows in (64, 256)}),
    **_least("%", {f"llama-1b, HTTP, {rows} streams": 85 for rows in (64, 256)}),
    **_least("%", {f"llama-8b, HTTP, {rows} streams": 90 for rows in (64, 256)}),
    **_most(
        "µs",
        {f"{shape}, engine, host time of a step, {rows} rows": 150 for shape in ("llama-1b",) for rows in (64, 256)},
    ),
    # Encoders.
    **_most("ms", {"bert-base, engine, 1 text": 0.6, "bert-base, HTTP, 1 text": 2.0}),
    **_least("%", {"bert-base, step, 128 texts of 128 tokens": 65}),
    # Encoder-decoders.
    **_least("tokens/s", {"opus-mt, 64 sentences, 4 beams": 60_000}),
    **_least("%", {f"{shape}, decode, 64 rows, context 128": 60 for shape in ("t5-large", "nllb-600m")}),
    **_least("%", {f"{shape}, encoder, 8 recordings": 50 for shape in ("whisper-small", "whisper-large-v3")}),
    # Low bits: rate as a multiple of the rate in bfloat16 with the same number of rows.
    **_least("times", {"llama-8b in int8, decode, 1 row, context 1024": 1.6}),
    **_least("times", {"llama-8b in int4, decode, 1 row, context 1024": 2.5}),
    **_least(
        "times",
        {
            f"{shape} in {bits}, decode, {rows} rows, context 1024": 0.95
            for shape, all_bits in (("llama-8b", ("int8", "int4")), ("moe-7b", ("int8",)))
            for bits in all_bits
            for rows in (16, 64, 256)
        },
    ),
    # Steps, as shares of the shortest possible time.
    **_least("%", {"llama-1b, decode, 1 row, context 1024": 75, "llama-8b, decode, 1 row, context 1024": 90}),
    **_least("%", {f"llama-1b, decode, {rows} rows, context 1024": 75 for rows in (16, 64, 256)}),
    **_least("%", {f"llama-8b, decode, {rows} rows, context 1024": 80 for rows in (16, 64, 256)}),
    **_least("%", {"decode attention of one layer, 64 rows, context 4096": 90}),
    **_least("%", {"llama-8b, prefill, 8000 tokens": 73}),
    # Settings: rate over HTTP as a multiple of the rate without the setting.
    **_least("times", {"llama-8b, batch invariant, 64 streams": 0.87}),
    **_least("times", {f"llama-8b, {kind} drafts, all accepted, 1 stream": 1.6 for kind in ("n-gram", "EAGLE-3")}),
    **_least("times", {f"llama-8b, EAGLE-3 drafts, none accepted, {how}": 0.97 for how in ("1 stream", "64 streams")}),
}
"""The goals by row. Each row with a goal has a line on the page, also if no device has measured it."""
