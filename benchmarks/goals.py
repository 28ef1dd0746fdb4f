"""Every line of the goals, and what was measured for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.plan import STREAMS
from benchmarks.summary import Summary

MARGIN_BYTES = 300 << 20
FLAT = 0.97
"""Throughput counts as not falling within what repeated runs differ by."""
LINEAR = 0.10
"""Largest distance from a straight line, as a share of the step."""


@dataclass(frozen=True)
class Line:
    """A goal and what came of it. ratio: measured over wanted; None where nothing was measured."""

    what: str
    goal: str
    measured: str
    ratio: float | None

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "not measured"
        return "reached" if self.ratio >= 1 else "missed"


def lines(summary: Summary) -> list[Line]:
    """In the order of the goals."""
    return [
        *_against_peers(summary, ("gpt2-124m", "llama-135m"), ("B", "B-mixed"), 1.25),
        *_against_peers(summary, ("gpt2-124m", "llama-135m"), ("A",), 1.0),
        *_bandwidth(summary),
        *_against_peers(summary, ("gpt2-124m", "llama-135m"), ("C",), 1.25),
        *_translation(summary),
        *_against_peers(summary, ("minilm-22m",), ("E",), 1.25),
        *_against_peers(summary, ("bert-base",), ("F",), 1.25),
        *_infinity(summary),
        *_wire(summary),
        *_stalls(summary),
        *_growth(summary),
        *_memory(summary),
        *_start(summary),
    ]


def _against_peers(
    summary: Summary, shapes: tuple[str, ...], workloads: tuple[str, ...], wanted: float
) -> Iterator[Line]:
    for shape in shapes:
        for workload in workloads:
            for precision in ("float32", "bfloat16", "int8"):
                best = summary.best_peer(shape, precision, workload)
                what, goal = f"{workload}, {shape}, {precision}", f"≥ {wanted:g} × the best peer"
                yield _against(summary, (shape, precision, workload), best, what, goal, wanted)


def _against(
    summary: Summary, key: tuple[str, str, str], peer: str | None, what: str, goal: str, wanted: float
) -> Line:
    """Ours over HTTP beside a peer."""
    ours = summary.rate(*key, "http")
    theirs = None if peer is None else summary.rate(*key, peer)
    if ours is None or peer is None or theirs is None:
        known = [f"{ours:,.0f} /s; no peer ran"] if ours is not None else []
        known += [f"ours did not run; {peer} {theirs:,.0f}"] if theirs is not None else []
        return Line(what, goal, *known or ["–"], None)
    ratio = summary.ratio((*key, "http"), (*key, peer))
    assert ratio is not None, "both ran in the first round"
    return Line(what, goal, f"{ours:,.0f} /s; {peer} {theirs:,.0f}: {ratio:.2f} ×", ratio / wanted)


def _bandwidth(summary: Summary) -> Iterator[Line]:
    for shape in ("gpt2-124m", "llama-135m"):
        for precision in ("float32", "bfloat16", "int8"):
            share = summary.bandwidth_share(shape, precision)
            text = "–" if share is None else f"{share:.0%}"
            ratio = None if share is None else share / 0.75
            yield Line(f"A, {shape}, {precision}, in process", "≥ 75% of the memory bandwidth", text, ratio)


def _translation(summary: Summary) -> Iterator[Line]:
    for workload, name in (("D", "greedy"), ("D-beam", "beam 4")):
        for precision, wanted in (("float32", 2.0), ("int8", 1.25)):
            goal = f"≥ {wanted:g} × CTranslate2 {precision}"
            what = f"D {name}, marian-74m, {precision}"
            yield _against(summary, ("marian-74m", precision, workload), "ctranslate2", what, goal, wanted)


def _infinity(summary: Summary) -> Iterator[Line]:
    for precision in ("float32", "bfloat16"):
        key = ("minilm-22m", precision, "E-clients")
        what = f"E over HTTP, 16 clients, {precision}"
        yield _against(summary, key, "infinity", what, "≥ 3 × infinity", 3)
        late = summary.median(*key, "http", "latencies_p99"), summary.median(*key, "infinity", "latencies_p99")
        if None in late:
            text, ratio = "–" if late[0] is None else f"{late[0] * 1e3:.0f} ms; infinity did not run", None
        else:
            text, ratio = f"{late[0] * 1e3:.0f} ms; infinity {late[1] * 1e3:.0f} ms", late[1] / late[0] / 3
        yield Line(f"{what}, p99", "≤ a third of infinity's", text, ratio)


def _wire(summary: Summary) -> Iterator[Line]:
    for precision in summary.precisions("llama-135m"):
        for streams, wanted in ((16, 0.95), (64, 0.90)):
            http, inside = (("llama-135m", precision, f"streams-{streams}", name) for name in ("http", "ours"))
            what = f"HTTP against in process, {streams} streams, {precision}"
            share = summary.ratio(http, inside)
            if share is None:
                yield Line(what, f"≥ {wanted:.0%}", "–", None)
            else:
                text = f"{summary.rate(*http):,.0f} of {summary.rate(*inside):,.0f} /s: {share:.1%}"
                yield Line(what, f"≥ {wanted:.0%}", text, share / wanted)
        for workload in ("streams-16", "B"):
            key = ("llama-135m", precision, workload, "http")
            seconds, events = summary.median(*key, "http_cpu_seconds"), summary.median(*key, "events")
            if seconds and events:
                each = seconds / events * 1e6
                what = f"CPU of the HTTP process, {workload}, {precision}"
                yield Line(what, "≤ 60 µs a token event", f"{each:.0f} µs", 60 / each)
                break


def _stalls(summary: Summary) -> Iterator[Line]:
    for shape in ("gpt2-124m", "llama-135m"):
        for precision in summary.precisions(shape):
            key = (shape, precision, "B-mixed", "http")
            middle, late = summary.median(*key, "gaps_p50"), summary.median(*key, "gaps_p99")
            if middle and late:
                text = f"{late * 1e3:.0f} ms over {middle * 1e3:.0f} ms: {late / middle:.1f} ×"
                yield Line(
                    f"inter-token p99 in B-mixed, {shape}, {precision}", "≤ 3 × its median", text, 3 * middle / late
                )


def _growth(summary: Summary) -> Iterator[Line]:
    for curve in summary.sections.get("context", []):
        what = f"step over context to {curve['contexts'][-1]}, {curve['rows']} rows, {curve['precision']}"
        text = f"{curve['deviation']:.0%} off a line at most"
        yield Line(what, f"linear (within {LINEAR:.0%})", text, LINEAR / max(curve["deviation"], 1e-9))
    for precision in summary.precisions("llama-135m"):
        for contestant in ("http", "ours"):
            keys = [("llama-135m", precision, f"streams-{count}", contestant) for count in STREAMS]
            growth = [summary.ratio(after, before) for before, after in itertools.pairwise(keys)]
            known = [ratio for ratio in growth if ratio is not None]
            if known:
                least = min(known)
                text = " → ".join(f"{rate:,.0f}" for key in keys if (rate := summary.rate(*key)) is not None)
                text += f"; least step {least:.2f} ×"
                what = f"throughput over streams, {precision}, {'HTTP' if contestant == 'http' else 'in process'}"
                yield Line(what, f"never falls (within {1 - FLAT:.0%})", text, least / FLAT)


def _memory(summary: Summary) -> Iterator[Line]:
    for shape in summary.shapes():
        for precision in summary.precisions(shape):
            weights = summary.load(shape, precision, "ours", "weight_bytes")
            pool = summary.load(shape, precision, "ours", "kv_bytes")
            used = [
                value
                for workload in summary.workloads(shape)
                if (value := summary.median(shape, precision, workload, "http", "rss_bytes")) is not None
            ]
            if weights is None or not used:
                continue
            over = max(used) - weights - pool
            sizes = [f"{size / 2**20:,.0f}" for size in (max(used), weights, pool, abs(over))]
            text = f"{sizes[0]} MB = {sizes[1]} + {sizes[2]} {'+' if over >= 0 else '−'} {sizes[3]}"
            wanted = (weights + pool + MARGIN_BYTES) / max(used)
            yield Line(f"memory of the worker, {shape}, {precision}", "weights + KV pool + ≤ 300 MB", text, wanted)


def _start(summary: Summary) -> Iterator[Line]:
    for precision in summary.precisions("llama-135m"):
        key = ("llama-135m", precision, "start", "http")
        demo, own = summary.median(*key, "demo_ready_seconds"), summary.median(*key, "ready_seconds")
        first, tenth = summary.median(*key, "first_request_seconds"), summary.median(*key, "tenth_request_seconds")
        if demo and own and first and tenth:
            yield Line("demo models ready", "≤ 6 s", f"{demo:.1f} s", 6 / demo)
            yield Line(f"llama-135m ready, {precision}", "≤ 8 s", f"{own:.1f} s", 8 / own)
            text = f"{first * 1e3:.0f} and {tenth * 1e3:.0f} ms: {first / tenth:.2f} ×"
            yield Line(f"first request against the tenth, {precision}", "≤ 2 ×", text, 2 * tenth / first)
