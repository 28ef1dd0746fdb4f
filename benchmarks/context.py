"""Measure the time of a decode step by context length: `python -m benchmarks.context --checkpoint DIR`.

Prints JSON: for each number of rows, the milliseconds of a step at each context, and their largest distance from a
straight line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.decode_rate import decode_batch
from models.kv_cache import KVCache
from models.loader import LoadedModel, load_model

CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096)
BLOCK_SIZE = 32


def load(checkpoint: Path, precision: str) -> LoadedModel:
    """Load a checkpoint on the CPU. precision: float32, bfloat16, int8 or int4."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    device = torch.device("cpu")
    return load_model(checkpoint, dtype, device, None, precision if precision in ("int8", "int4") else None)


@torch.inference_mode()
def curve(model: LoadedModel, rows: int, contexts: tuple[int, ...], steps: int) -> dict[str, Any]:
    """Median step time at each context. The contexts alternate, so that other load affects all equally."""
    transformer, device = model.transformer, torch.device("cpu")
    blocks = rows * -(-contexts[-1] // BLOCK_SIZE)
    cache = KVCache(transformer.self_attention_layers(), blocks, BLOCK_SIZE, transformer.attention_dtype, device)
    times: dict[int, list[float]] = {context: [] for context in contexts}
    for number in range(steps + 1):
        for context in contexts:
            batch = decode_batch(rows, context, BLOCK_SIZE, device, model.config.vocab_size)
            started = time.perf_counter()
            transformer.logits(transformer.decode(batch, cache).hidden).argmax(-1)
            if number:
                times[context].append(time.perf_counter() - started)
    medians = [statistics.median(times[context]) for context in contexts]
    return {
        "rows": rows,
        "contexts": list(contexts),
        "step_ms": [seconds * 1e3 for seconds in medians],
        "deviation": deviation(list(contexts), medians),
    }


def deviation(xs: list[int], ys: list[float]) -> float:
    """Largest distance of a value from the least-squares line, as a share of the value."""
    line = statistics.linear_regression(xs, ys)
    return max(abs(line.intercept + line.slope * x - y) / y for x, y in zip(xs, ys, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--precisions", nargs="+", default=["float32"], choices=["float32", "bfloat16", "int8", "int4"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--longest", type=int, default=CONTEXTS[-1], help="longest context, in tokens")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    contexts = tuple(context for context in CONTEXTS if context <= given.longest)
    curves = []
    for precision in given.precisions:
        model = load(given.checkpoint, precision)
        curves += [{"precision": precision, **curve(model, rows, contexts, given.steps)} for rows in given.rows]
    print(json.dumps(curves))


if __name__ == "__main__":
    main()
