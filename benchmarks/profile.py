"""Measure the time of a workload by operation: `python -m benchmarks.profile [--only llama-135m/int8/A D]`.

The engine runs the workload in this process. Every operation of its programs is timed, and so are the selection of
tokens and the output heads outside of programs. The rest is Python, embeddings and the building of batches.
The floor of a product is the larger of weight bytes divided by memory bandwidth, and operations divided by the rate of
large products of oneDNN. The floor of an encoder's attention is the operations of its two products divided by that
rate. Bandwidth and rate are measured just before and just after the workload, because the speed of a shared machine
changes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import checkpoints, machine, plan, workloads
from benchmarks.contestants.contract import Subject
from benchmarks.contestants.ours import Entry
from benchmarks.summary import HEAD_ITEM_BYTES
from models.backends.cpu.programs import program
from models.layers.heads import LanguageModel
from server.engine.stepping import generation_engine


class Clock:
    """Adds up the seconds of each part of a run, by name. Times of different parts do not overlap."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._heads: list[tuple[int, int]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context manager that measures the time of output heads and of the selection of tokens."""

        def head(call: Callable[..., Any], owner: LanguageModel, hidden: torch.Tensor, *others: Any) -> Any:
            if not isinstance(hidden, torch.Tensor):
                return call(owner, hidden, *others)  # a trace records the head without computing it
            logits = self._timed("output head", call, owner, hidden, *others)
            self._heads.append((logits.shape[1] * hidden.shape[1], hidden.shape[0]))
            return logits

        def select(*call: Any) -> Any:
            # The selection of tokens may compute logits; this time is added to that of the output head only.
            before = self.seconds["output head"]
            tokens = self._timed("selection", *call)
            self.seconds["selection"] -= self.seconds["output head"] - before
            return tokens

        with ExitStack() as stack:
            self._patch(stack, LanguageModel, "forward", head)
            self._patch(stack, generation_engine, "select", select)
            yield

    def head_floor(self, item_bytes: float, bandwidth: float, operations: float) -> float:
        """Shortest time in seconds that the machine needs for the matrix products of the output heads so far.

        item_bytes: bytes per weight. bandwidth: bytes per second. operations: operations per second.
        """
        return sum(max(size * item_bytes / bandwidth, 2 * rows * size / operations) for size, rows in self._heads)

    def _patch(self, stack: ExitStack, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        call = getattr(owner, name)
        stack.enter_context(mock.patch.object(owner, name, lambda *args, **named: wrapper(call, *args, **named)))

    def _timed(self, name: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            self.seconds[name] += time.perf_counter() - started


def attention_operations(shape: str, work: workloads.Job) -> int | None:
    """Additions and multiplications in the two products of attention: queries by keys, and weights by values.

    None for models other than encoders. In an encoder every token of a text attends to all tokens of the text.
    """
    if work.kind != "embed":
        return None
    settings = checkpoints.SHAPES[shape].settings
    pairs = sum(len(text) ** 2 for text in work.inputs)
    return int(2 * 2 * pairs * settings["hidden_size"] * settings["num_hidden_layers"])


def profile(shape: str, precision: str, workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the seconds of a workload by part, and the floors of its products and of an encoder's attention.

    options: `directory` of the checkpoints, `threads` and `scale`.
    """
    entry = Entry()
    entry.load(Subject(shape, precision, str(options.directory / shape), "", options.threads, None))
    work = workloads.job(workload, shape, options.scale, seed=1)
    # The warm-up uses other token ids, because those of the timed run must not be in the prefix cache.
    entry.run(workloads.shortened(workloads.job(workload, shape, options.scale, seed=0)))
    clock = Clock()
    before = _limits(precision)
    with program.measuring() as measurement, clock.watching():
        outcome = entry.run(work)
    limits = [(earlier + other) / 2 for earlier, other in zip(before, _limits(precision), strict=True)]
    bandwidth, operations, attention_operations_per_second = limits
    found = measurement.by_name(bandwidth, operations)
    recorded_head = found.pop("output head", (0.0, 0.0))
    parts = {name: seconds for name, (seconds, _) in found.items() if not name.startswith("product")}
    products = [(seconds, floor) for name, (seconds, floor) in found.items() if name.startswith("product")]
    attention = attention_operations(shape, work)
    return {
        "shape": shape,
        "precision": precision,
        "workload": workload,
        "seconds": outcome.seconds,
        "products": [sum(column) for column in zip(*products, strict=True)] or [0.0, 0.0],
        "head": [
            clock.seconds["output head"] + recorded_head[0],
            clock.head_floor(HEAD_ITEM_BYTES[precision], bandwidth, operations) + recorded_head[1],
        ],
        "attention": [
            parts.pop("attend", 0.0),
            None if attention is None else attention / attention_operations_per_second,
        ],
        "choice": clock.seconds["selection"] + parts.pop("logits_top_k", 0.0),
        "small": sum(parts.values()),
    }


def _limits(precision: str) -> tuple[float, float, float]:
    """Measure the limits of the machine: memory bytes per second, and operations per second in the products of linear
    layers and in those of attention.

    Models in int8 and int4 compute linear layers in int8 and attention in bfloat16.
    """
    of_attention = "bfloat16" if precision in ("int8", "int4") else precision
    names = ("int8" if precision == "int4" else precision, of_attention)
    peak, attention_peak = machine.peaks_in_own_process(names, torch.get_num_threads())
    return machine.usual_bandwidth(), peak, attention_peak


def selected(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """Shape, precision and workload of each selected workload.

    words: each selects a workload, a shape, a precision, or several of these joined by `/`; empty for all.
    """
    for contest in plan.select(plan.full(), words, []):
        for workload in contest.workloads:
            if workload in plan.PROFILED:
                yield contest.shape, contest.precision, workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[], help="workloads, shapes or precisions, also joined: llama-135m/int8/B"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny models and workloads, to test the profile")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--checkpoints", type=Path, default=Path(".bench"), help="directory for the models")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    scale = workloads.TINY if given.tiny else workloads.FULL
    options = argparse.Namespace(directory=given.checkpoints, threads=given.threads, scale=scale)
    found = []
    for shape, precision, workload in _tiny() if given.tiny else selected(given.only):
        checkpoints.make(shape, given.checkpoints)
        found.append(profile(shape, precision, workload, options))
        if not given.json:
            show(found[-1])
    if given.json:
        print(json.dumps(found))


def _tiny() -> Iterator[tuple[str, str, str]]:
    yield "llama-tiny", "int8", "A"
    yield "minilm-tiny", "float32", "E"


def rest(found: dict[str, Any]) -> float:
    """Time of a workload in seconds that belongs to no measured part: Python, embeddings, and building batches."""
    known = found["products"][0] + found["head"][0] + found["attention"][0] + found["choice"] + found["small"]
    return float(found["seconds"] - known)


def show(found: dict[str, Any]) -> None:
    print(f"\n{found['workload']}, {found['shape']}, {found['precision']}: {found['seconds'] * 1e3:,.0f} ms")
    for name in ("products", "head", "attention"):
        seconds, floor = found[name]
        known = "" if floor is None else f", floor {floor * 1e3:,.1f} ms"
        print(f"  {seconds * 1e3:9.1f} ms {seconds / found['seconds']:6.1%}  {name}{known}")
    for name, label in (("choice", "selection"), ("small", "small")):
        print(f"  {found[name] * 1e3:9.1f} ms {found[name] / found['seconds']:6.1%}  {label}")
    print(f"  {rest(found) * 1e3:9.1f} ms {rest(found) / found['seconds']:6.1%}  rest")


if __name__ == "__main__":
    main()
