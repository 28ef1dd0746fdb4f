"""Where the time of a decode step goes: `python -m benchmarks.profile [--precision int8] [--rows 1 16]`.

Each operation is timed where the model calls it; what is left of the step is Python, embeddings and the choice of
tokens. The floor is what the machine allows: bytes of weights and cache over its bandwidth, or operations over its
peak, whichever is longer, both measured in the same run.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import checkpoints, machine
from benchmarks.context import BLOCK_SIZE, load
from benchmarks.decode_rate import decode_batch
from models import ops
from models.kv_cache import KVCache
from models.loader import LoadedModel
from models.transformer import Transformer

OPERATIONS = {
    "rms_norm": "norms",
    "layer_norm": "norms",
    "rotate": "rotary positions",
    "write_slots": "writing the cache",
    "paged_attention": "attention over the cache",
}
PRODUCTS = {
    "merged": "queries, keys and values",
    "output": "attention output",
    "gate": "feed-forward, in",
    "up": "feed-forward, in",
    "down": "feed-forward, out",
}


class Clock:
    """Seconds by name. The timed calls do not lie in each other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds[name] += time.perf_counter() - started

        return wrapper

    @contextmanager
    def watching(self, model: Transformer) -> Iterator[None]:
        """Time the operations of this model, and those that all models share."""
        with ExitStack() as stack:
            for operation, name in OPERATIONS.items():
                stack.enter_context(mock.patch.object(ops, operation, self.timed(name, getattr(ops, operation))))
            for path, module in model.named_modules():
                last = path.rpartition(".")[2]
                if getattr(module, "merged", None) is not None:
                    self._patch(stack, module, "merged", PRODUCTS["merged"])
                if last in PRODUCTS:
                    self._patch(stack, module, "forward", PRODUCTS[last])
            self._patch(stack, model.head, "forward", "output head")
            yield

    def _patch(self, stack: ExitStack, owner: Any, attribute: str, name: str) -> None:
        stack.enter_context(mock.patch.object(owner, attribute, self.timed(name, getattr(owner, attribute))))


@torch.inference_mode()
def profile(
    model: LoadedModel, dtype: torch.dtype, rows: int, context: int, steps: int, limits: dict[str, float]
) -> dict[str, Any]:
    """A step's median, its parts, and its floor. limits: bytes and operations per second."""
    transformer, device = model.transformer, torch.device("cpu")
    layers = transformer.self_attention_layers()
    blocks = rows * -(-context // BLOCK_SIZE)
    cache = KVCache(layers, blocks, BLOCK_SIZE, dtype, device)
    batch = decode_batch(rows, context, BLOCK_SIZE, device, model.config.vocab_size)

    def step() -> torch.Tensor:
        return transformer.logits(transformer.decode(batch, cache)).argmax(-1)

    seconds, parts = _times(step, transformer, steps)
    read = step_bytes(model) + rows * context * KVCache.block_bytes(layers, 1, dtype)
    operations = 2 * rows * model.parameters
    by_memory, by_peak = read / limits["bytes"], operations / limits["operations"]
    reason = (
        f"{read / 1e6:.0f} MB at {limits['bytes'] / 1e9:.1f} GB/s take {by_memory * 1e3:.2f} ms, "
        f"{operations / 1e9:.1f} G operations at {limits['operations'] / 1e9:,.0f} G/s {by_peak * 1e3:.2f} ms"
    )
    return {
        "rows": rows,
        "context": context,
        "step_ms": seconds * 1e3,
        "floor_ms": max(by_memory, by_peak) * 1e3,
        "reason": reason,
        "parts": [
            {"name": name, "ms": value * 1e3} for name, value in sorted(parts.items(), key=lambda item: -item[1])
        ],
    }


def _times(step: Callable[[], object], transformer: Transformer, steps: int) -> tuple[float, dict[str, float]]:
    """Medians of a step and of its parts. Plain and watched steps take turns: watching takes time itself."""
    plain: list[float] = []
    watched: dict[str, list[float]] = defaultdict(list)
    for number in range(steps + 2):
        started = time.perf_counter()
        step()
        took, clock = time.perf_counter() - started, Clock()
        with clock.watching(transformer):
            step()
        if number >= 2:
            plain.append(took)
            for name, value in clock.seconds.items():
                watched[name].append(value)
    seconds = statistics.median(plain)
    parts = {name: statistics.median(values) for name, values in watched.items()}
    parts["everything else"] = max(seconds - sum(parts.values()), 0.0)
    return seconds, parts


def step_bytes(model: LoadedModel) -> int:
    """Weights that a decode step reads: all but a token table that only rows are taken of."""
    transformer = model.transformer
    assert transformer.decoder is not None
    head_is_packed = getattr(transformer.head, "packed", None) is not None
    return model.weight_bytes - (transformer.decoder.tokens.weight.nbytes if head_is_packed else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-135m", choices=checkpoints.SHAPES)
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--checkpoints", type=Path, default=Path(".bench"), help="where models are made and kept")
    parser.add_argument("--json", action="store_true", help="print figures for programs")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    directory = checkpoints.make(given.shape, given.checkpoints)
    bandwidth = machine.read_bandwidth()
    found = []
    for precision in given.precision:
        model, dtype = load(directory, precision)
        limits = {"bytes": bandwidth, "operations": machine.peak(precision)}
        for rows in given.rows:
            one = profile(model, dtype, rows, given.context, given.steps, limits)
            found.append({"shape": given.shape, "precision": precision, **one})
            if not given.json:
                show(found[-1])
    if given.json:
        print(json.dumps(found))


def show(found: dict[str, Any]) -> None:
    print(
        f"\n{found['shape']}, {found['precision']}, {found['rows']} rows at a context of {found['context']}: "
        f"{found['step_ms']:.2f} ms a step, floor {found['floor_ms']:.2f} ms, "
        f"{found['floor_ms'] / found['step_ms']:.0%} of it"
    )
    print(f"  {found['reason']}")
    for part in found["parts"]:
        print(f"  {part['ms']:8.2f} ms {part['ms'] / found['step_ms']:6.1%}  {part['name']}")


if __name__ == "__main__":
    main()
