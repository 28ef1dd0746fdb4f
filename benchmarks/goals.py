"""The table of goals on the result page: each goal, the measured value, and whether the goal is reached."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.contestants import LABELS, LLAMA_CPP, LLAMA_LIBRARY
from benchmarks.plan import LARGE_PRECISIONS, PRECISIONS, STREAMS
from benchmarks.summary import Summary

MEMORY_MARGIN_BYTES = 300 << 20
"""Goal: largest memory of a worker beyond its weights and KV pool, in bytes."""
MIN_THROUGHPUT_RATIO = 0.97
"""Goal: throughput with more streams is at least this share of that with fewer. Repeated runs differ by up to 3%."""
MAX_DEVIATION = 0.10
"""Goal: largest distance of a step time from the straight line through all step times, as a share of the step time."""


@dataclass(frozen=True)
class Line:
    """A goal, its measured value and its verdict: one row of the table of goals.

    ratio: measured value divided by the goal, or the reverse if lower is better; at least 1 if the goal is reached.
        None without a measurement.
    """

    quantity: str
    goal: str
    measured: str
    ratio: float | None

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "not measured"
        return "reached" if self.ratio >= 1 else "missed"


def lines(summary: Summary) -> list[Line]:
    """All rows of the table, in the order of the result page. A run with `--quantized` has other rows."""
    if any(entry["contestant"] in LLAMA_LIBRARY for entry in summary.entries):
        return list(_quantized(summary))
    return [
        *_against_peers(summary, ("gpt2-124m", "llama-135m"), ("A", "B", "B-mixed"), 1.25),
        *_bandwidth(summary),
        *_against_peers(summary, ("gpt2-124m", "llama-135m"), ("C",), 1.25),
        *_large(summary),
        *_translation(summary),
        *_encoders(summary),
        *_infinity(summary),
        *_small_requests(summary),
        *_wire(summary),
        *_stalls(summary),
        *_growth(summary),
        *_memory(summary),
        *_start(summary),
    ]


def _against_peers(
    summary: Summary,
    shapes: tuple[str, ...],
    workloads: tuple[str, ...],
    target: float,
    precisions: tuple[str, ...] = PRECISIONS,
) -> Iterator[Line]:
    for shape in shapes:
        for workload in workloads:
            for precision in precisions:
                best = summary.best_peer(shape, precision, workload)
                quantity, goal = f"{workload}, {shape}, {precision}", f"≥ {target:g} × the best peer"
                yield _against_peer(summary, (shape, precision, workload), best, quantity, goal, target)


def _large(summary: Summary) -> Iterator[Line]:
    """Goals of the models with a billion parameters: rates relative to llama.cpp in the same precision.

    In int4, the rate of llama.cpp's faster 4-bit format counts.
    """
    targets = {("llama-1b", "A", ("int4",)): 1.1, ("llama-1b", "B", ("int8",)): 2.0}
    targets |= {("llama-1b", "C-512", ("bfloat16", "int8")): 1.25, ("llama-1b", "C-512", ("int4",)): 1.5}
    targets |= {("moe-1b", "A", LARGE_PRECISIONS): 1.1, ("moe-1b", "B", LARGE_PRECISIONS): 1.5}
    for (shape, workload, precisions), target in targets.items():
        for precision in precisions:
            peer = summary.best_peer(shape, precision, workload, LLAMA_CPP) or "llama.cpp"
            quantity, goal = f"{workload}, {shape}, {precision}", f"≥ {target:g} × llama.cpp"
            yield _against_peer(summary, (shape, precision, workload), peer, quantity, goal, target)
    yield _against_peer_or_floor(summary, ("llama-1b", "bfloat16", "B"), "llama.cpp", 2.0, 0.88)
    yield _int4_against_int8(summary)


def _against_peer_or_floor(
    summary: Summary, key: tuple[str, str, str], peer: str, target: float, floor_target: float
) -> Line:
    """A goal with two conditions, of which one must hold: a rate relative to a peer, or a share of the floor.

    The floor is the least time that the processor needs for the matrix products; its share is the floor divided by the
    run time.

    key: shape, precision and workload. target: ratio to the peer's rate to reach. floor_target: share to reach.
    """
    shape, precision, workload = key
    goal = f"≥ {target:g} × {peer} or ≥ {floor_target:.0%} of the floor"
    line = _against_peer(summary, key, peer, f"{workload}, {shape}, {precision}", goal, target)
    share = summary.floor_share(*key)
    if share is None:
        return line
    ratios = [share / floor_target, *([] if line.ratio is None else [line.ratio])]
    return replace(line, measured=f"{line.measured}; {share:.0%} of the floor", ratio=max(ratios))


def _int4_against_int8(summary: Summary) -> Line:
    """Goal for 16 streams: int4 is at least as fast as int8, although its kernels are optimized for one stream."""
    rates = [summary.rate("llama-1b", precision, "B", "http") for precision in ("int4", "int8")]
    quantity, goal = "B, llama-1b, int4 over int8", "≥ 1 × the rate of Triptych in int8"
    if rates[0] is None or rates[1] is None:
        return Line(quantity, goal, "–", None)
    ratio = rates[0] / rates[1]
    return Line(quantity, goal, f"{rates[0]:,.0f} and {rates[1]:,.0f} /s: {ratio:.2f} ×", ratio)


def _encoders(summary: Summary) -> Iterator[Line]:
    """Goals of encoders: a share of the floor in float32 and bfloat16, rates relative to peers in int8.

    The floor is the least time that the processor needs for the matrix products, which take most of the time. It leaves
    out the products of attention, so the table also shows the largest share that is possible with them.
    """
    for shape, workload in (("minilm-22m", "E"), ("bert-base", "F")):
        for precision in ("float32", "bfloat16"):
            share = summary.floor_share(shape, precision, workload)
            with_attention = summary.floor_share_with_attention(shape, precision, workload)
            text = "–" if share is None else f"{share:.0%}"
            if with_attention is not None:
                text += f"; at most {with_attention:.0%} with attention at peak"
            ratio = None if share is None else share / 0.92
            yield Line(
                f"{workload}, {shape}, {precision}, in process", "≥ 92% of the floor of the products", text, ratio
            )
        yield from _against_peers(summary, (shape,), (workload,), 1.5, ("int8",))


def _quantized(summary: Summary) -> Iterator[Line]:
    """Goals of the settings of `--quantize`, in process: rates relative to llama.cpp's formats of the same size.

    With one stream, each token reads all weights. There a share of the memory bandwidth also reaches the goal.
    """
    for shape in ("llama-135m", "llama-1b", "moe-1b"):
        for precision, one_stream, many in (("int8", 1.25, 2.0), ("int4", 1.1, 1.5)):
            for workload, target in (("A", one_stream), ("B", many)):
                key = (shape, precision, workload)
                peer, ours = summary.best_peer(*key, LLAMA_LIBRARY), summary.rate(*key, "ours")
                goal, quantity = f"≥ {target:g} × the faster format of llama.cpp", f"{workload}, {shape}, {precision}"
                ratio = None if peer is None else summary.ratio((*key, "ours"), (*key, peer))
                if peer is None or ratio is None:
                    yield Line(quantity, goal, "–", None)
                    continue
                text = f"{ours:,.0f} /s; {LABELS[peer]} {summary.rate(*key, peer):,.0f}: {ratio:.2f} ×"
                share = summary.bandwidth_share(shape, precision) if workload == "A" and shape != "moe-1b" else None
                if share is not None:
                    goal, text = f"{goal}, or ≥ 90% of the memory bandwidth", f"{text}; {share:.0%}"
                yield Line(quantity, goal, text, max(ratio / target, (share or 0.0) / 0.9))


def _against_peer(
    summary: Summary, key: tuple[str, str, str], peer: str | None, quantity: str, goal: str, target: float
) -> Line:
    """Goal for the rate of Triptych over HTTP, divided by that of a peer.

    key: shape, precision and workload. peer: name of the peer, None without a measured peer.
    quantity, goal: texts of the row. target: least ratio.
    """
    ours = summary.rate(*key, "http")
    theirs = None if peer is None else summary.rate(*key, peer)
    if ours is None or peer is None or theirs is None:
        known = [f"{ours:,.0f} /s; no peer was measured"] if ours is not None else []
        known += [f"Triptych was not measured; {peer} {theirs:,.0f}"] if theirs is not None else []
        return Line(quantity, goal, *known or ["–"], None)
    ratio = summary.ratio((*key, "http"), (*key, peer))
    assert ratio is not None, "both contestants ran in the first round"
    return Line(quantity, goal, f"{ours:,.0f} /s; {peer} {theirs:,.0f}: {ratio:.2f} ×", ratio / target)


def _bandwidth(summary: Summary) -> Iterator[Line]:
    for shape in ("gpt2-124m", "llama-135m", "llama-1b"):
        for precision in LARGE_PRECISIONS if shape == "llama-1b" else PRECISIONS:
            share = summary.bandwidth_share(shape, precision)
            text = "–" if share is None else f"{share:.0%}"
            ratio = None if share is None else share / 0.75
            yield Line(f"A, {shape}, {precision}, in process", "≥ 75% of the memory bandwidth", text, ratio)


def _translation(summary: Summary) -> Iterator[Line]:
    for workload, name in (("D", "greedy"), ("D-beam", "beam 4")):
        for precision, target in (("float32", 2.0), ("int8", 1.5)):
            goal = f"≥ {target:g} × CTranslate2 {precision}"
            quantity = f"D {name}, marian-74m, {precision}"
            yield _against_peer(summary, ("marian-74m", precision, workload), "ctranslate2", quantity, goal, target)


def _infinity(summary: Summary) -> Iterator[Line]:
    for precision in ("float32", "bfloat16"):
        key = ("minilm-22m", precision, "E-clients")
        quantity = f"E over HTTP, 16 clients, {precision}"
        yield _against_peer(summary, key, "infinity", quantity, "≥ 3 × infinity", 3)
        p99 = summary.median(*key, "http", "latencies_p99"), summary.median(*key, "infinity", "latencies_p99")
        if None in p99:
            text, ratio = "–" if p99[0] is None else f"{p99[0] * 1e3:.0f} ms; infinity was not measured", None
        else:
            text, ratio = f"{p99[0] * 1e3:.0f} ms; infinity {p99[1] * 1e3:.0f} ms", p99[1] / p99[0] / 3
        yield Line(f"{quantity}, p99", "≤ a third of infinity's", text, ratio)


def _small_requests(summary: Summary) -> Iterator[Line]:
    """Goals for one small request over HTTP: at most 1.2 times the time of a peer in process, plus 1 ms."""
    peers = {"minilm-22m": "onnxruntime", "bert-base": "onnxruntime", "marian-74m": "ctranslate2"}
    for shape, peer in peers.items():
        for precision in ("float32", "int8"):
            key = (shape, precision, "L")
            ours, theirs = (summary.median(*key, name, "latencies_p50") for name in ("http", peer))
            quantity = f"L, {shape}, {precision}, median"
            goal = f"≤ 1.2 × {LABELS.get(peer, peer)} in process + 1 ms"
            if ours is None or theirs is None:
                yield Line(quantity, goal, "–", None)
                continue
            limit = 1.2 * theirs + 1e-3
            text = f"{ours * 1e3:.1f} ms; {LABELS.get(peer, peer)} {theirs * 1e3:.1f} ms: limit {limit * 1e3:.1f} ms"
            yield Line(quantity, goal, text, limit / ours)


def _wire(summary: Summary) -> Iterator[Line]:
    for precision in PRECISIONS:
        for streams, target in ((16, 0.95), (64, 0.90)):
            http, in_process = (("llama-135m", precision, f"streams-{streams}", name) for name in ("http", "ours"))
            quantity = f"HTTP rate / in-process rate, {streams} streams, {precision}"
            share = summary.ratio(http, in_process)
            if share is None:
                yield Line(quantity, f"≥ {target:.0%}", "–", None)
            else:
                text = f"{summary.rate(*http):,.0f} of {summary.rate(*in_process):,.0f} /s: {share:.1%}"
                yield Line(quantity, f"≥ {target:.0%}", text, share / target)
        for workload in ("streams-16", "B"):
            key = ("llama-135m", precision, workload, "http")
            seconds, events = summary.median(*key, "http_cpu_seconds"), summary.median(*key, "events")
            if seconds and events:
                microseconds = seconds / events * 1e6
                quantity = f"CPU time of the HTTP process, {workload}, {precision}"
                yield Line(quantity, "≤ 60 µs per token event", f"{microseconds:.0f} µs", 60 / microseconds)
                break


def _stalls(summary: Summary) -> Iterator[Line]:
    for shape in ("gpt2-124m", "llama-135m"):
        for precision in summary.precisions(shape):
            key = (shape, precision, "B-mixed", "http")
            median, p99 = summary.median(*key, "gaps_p50"), summary.median(*key, "gaps_p99")
            if median and p99:
                text = f"{p99 * 1e3:.0f} ms over {median * 1e3:.0f} ms: {p99 / median:.1f} ×"
                quantity = f"p99 inter-token latency, B-mixed, {shape}, {precision}"
                yield Line(quantity, "≤ 2.5 × the median", text, 2.5 * median / p99)


def _growth(summary: Summary) -> Iterator[Line]:
    for curve in summary.sections.get("context", []):
        quantity = f"step time up to context {curve['contexts'][-1]}, {curve['rows']} rows, {curve['precision']}"
        text = f"at most {curve['deviation']:.0%} from a line"
        yield Line(quantity, f"linear within {MAX_DEVIATION:.0%}", text, MAX_DEVIATION / max(curve["deviation"], 1e-9))
    for precision in summary.precisions("llama-135m"):
        for contestant in ("http", "ours"):
            keys = [("llama-135m", precision, f"streams-{count}", contestant) for count in STREAMS]
            growth = [summary.ratio(after, before) for before, after in itertools.pairwise(keys)]
            known = [ratio for ratio in growth if ratio is not None]
            if known:
                smallest = min(known)
                text = " → ".join(f"{rate:,.0f}" for key in keys if (rate := summary.rate(*key)) is not None)
                text += f"; smallest ratio {smallest:.2f} ×"
                place = "HTTP" if contestant == "http" else "in process"
                goal = f"never falls by more than {1 - MIN_THROUGHPUT_RATIO:.0%}"
                quantity = f"throughput over streams, {precision}, {place}"
                yield Line(quantity, goal, text, smallest / MIN_THROUGHPUT_RATIO)


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
            rest = max(used) - weights - pool
            sizes = [f"{size / 2**20:,.0f}" for size in (max(used), weights, pool, abs(rest))]
            text = f"{sizes[0]} MB = {sizes[1]} + {sizes[2]} {'+' if rest >= 0 else '−'} {sizes[3]}"
            ratio = (weights + pool + MEMORY_MARGIN_BYTES) / max(used)
            yield Line(f"memory of the worker, {shape}, {precision}", "≤ weights + KV pool + 300 MB", text, ratio)


def _start(summary: Summary) -> Iterator[Line]:
    for precision in summary.precisions("llama-135m"):
        key = ("llama-135m", precision, "start", "http")
        demo, own = summary.median(*key, "demo_ready_seconds"), summary.median(*key, "ready_seconds")
        first, tenth = summary.median(*key, "first_request_seconds"), summary.median(*key, "tenth_request_seconds")
        if demo and own and first and tenth:
            yield Line("start time, demo models", "≤ 4 s", f"{demo:.1f} s", 4 / demo)
            yield Line(f"start time, llama-135m, {precision}", "≤ 5 s", f"{own:.1f} s", 5 / own)
            text = f"{first * 1e3:.0f} and {tenth * 1e3:.0f} ms: {first / tenth:.2f} ×"
            yield Line(f"first request / tenth request, {precision}", "≤ 2 ×", text, 2 * tenth / first)
    largest = summary.median("llama-262k", "float32", "start", "http", "ready_seconds")
    if largest:
        yield Line(
            "start time, vocabulary of 262,144 tokens, 6,242 of them added", "≤ 4 s", f"{largest:.1f} s", 4 / largest
        )
