"""Measure the time of a decode step by context length: `python -m benchmarks.context --checkpoint DIR`.

Prints JSON: for each number of rows, the milliseconds of a step at each context, and their largest distance from a
straight line. With `--kv-cache-dtypes auto int8`, measurements of the two KV caches alternate, so that other load on
the machine affects both equally.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.precisions import ALL_PRECISIONS, model_spec
from benchmarks.random_models import decode_batch
from models.checkpoint.loader import LoadedModel
from models.steps.kv_cache import KVCache
from server.engine.loading.load import load

CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096)
BLOCK_SIZE = 32


@torch.inference_mode()
def curves(
    model: LoadedModel, rows: int, contexts: tuple[int, ...], steps: int, cache_dtypes: Sequence[str]
) -> list[dict[str, Any]]:
    """Measure the median time of a decode step at each context length, for each dtype of the KV cache.

    Contexts and caches alternate, so that a change of the machine's speed affects all of them equally.

    rows: number of rows in the step. steps: number of measured steps per context and cache.
    Returns one entry per cache dtype, with the times in milliseconds.
    """
    transformer, device = model.transformer, torch.device("cpu")
    layers, blocks = transformer.self_attention_layers(), rows * -(-contexts[-1] // BLOCK_SIZE)
    dtypes = {name: torch.int8 if name == "int8" else transformer.attention_dtype for name in cache_dtypes}
    caches = {name: KVCache(layers, blocks, BLOCK_SIZE, dtype, device) for name, dtype in dtypes.items()}
    times: dict[tuple[str, int], list[float]] = {(name, context): [] for name in caches for context in contexts}
    for number in range(steps + 1):
        for context in contexts:
            batch = decode_batch(rows, context, BLOCK_SIZE, device, model.config.vocab_size)
            for name, cache in caches.items():
                started = time.perf_counter()
                transformer.logits(transformer.decode(batch, cache).hidden).argmax(-1)
                if number:
                    times[name, context].append(time.perf_counter() - started)
    found = []
    for name in caches:
        medians = [statistics.median(times[name, context]) for context in contexts]
        found.append(
            {
                "rows": rows,
                "kv_cache_dtype": name,
                "contexts": list(contexts),
                "step_ms": [seconds * 1e3 for seconds in medians],
                "deviation": deviation(list(contexts), medians),
            }
        )
    return found


def deviation(xs: list[int], ys: list[float]) -> float:
    """Largest distance of a value in `ys` from the least-squares line through all of them, as a share of the value."""
    line = statistics.linear_regression(xs, ys)
    return max(abs(line.intercept + line.slope * x - y) / y for x, y in zip(xs, ys, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--precisions", nargs="+", default=["float32"], choices=ALL_PRECISIONS)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--kv-cache-dtypes", nargs="+", default=["auto"], choices=["auto", "int8"])
    parser.add_argument("--longest", type=int, default=CONTEXTS[-1], help="longest context, in tokens")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    contexts = tuple(context for context in CONTEXTS if context <= given.longest)
    found = []
    for precision in given.precisions:
        spec = model_spec("model", str(given.checkpoint), precision)
        model = load(spec, torch.device("cpu"), lambda done, total: None).model
        for rows in given.rows:
            own = curves(model, rows, contexts, given.steps, given.kv_cache_dtypes)
            found += [{"precision": precision, **curve} for curve in own]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
