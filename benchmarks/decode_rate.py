"""Measure the decode rate of a LLaMA with 1.2 billion parameters, as a share of the memory bandwidth limit.

    python -m benchmarks.decode_rate                      CUDA, bfloat16, 1, 16 and 64 rows at a context of 1024
    python -m benchmarks.decode_rate --device cpu --dtype float32 --context 64 --rows 1 --steps 4

A decode step reads every weight once, and the keys and values of every row. The shortest possible time is these bytes
divided by the bandwidth of the device, which is measured in the same run by copying a large tensor. Weights are random.
A step includes the model and the greedy selection of tokens, but no scheduling.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from models.batch import DecoderBatch
from models.families.llama import FAMILY
from models.kv_cache import KVCache
from models.pack_weights import WeightPacker
from models.transformer import Transformer

LLAMA_1B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}


def random_model(config: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Transformer:
    """A model with random weights, small enough that no value overflows."""
    with torch.device("meta"):
        model = Transformer(FAMILY.config(config, "LlamaForCausalLM"))
    model = model.to(dtype).to_empty(device=device)
    for parameter in model.parameters():
        parameter.normal_(std=0.02) if parameter.dim() > 1 else parameter.fill_(1)
    return model


def seconds_per_call(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Median duration of a call, after three calls to warm up. Waits for the device after each call."""
    times = []
    for index in range(calls + 3):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if index >= 3:
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def bandwidth(device: torch.device) -> float:
    """Memory bandwidth of a copy in bytes per second, reads plus writes."""
    size = (4 << 30) if device.type == "cuda" else (256 << 20)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_per_call(lambda: target.copy_(source), 10, device)


def decode_batch(
    rows: int, context: int, block_size: int, device: torch.device, vocab_size: int = 1000
) -> DecoderBatch:
    """Batch with one new token for each row. Every row has `context - 1` tokens in the cache."""
    blocks_per_row = -(-context // block_size)
    tables = torch.arange(rows * blocks_per_row, device=device).view(rows, blocks_per_row)
    last = context - 1
    return DecoderBatch(
        token_ids=torch.randint(vocab_size, (rows,), device=device),
        positions=torch.full((rows,), last, device=device),
        query_lens=(1,) * rows,
        key_lens=(context,) * rows,
        slot_mapping=tables[:, last // block_size] * block_size + last % block_size,
        block_tables=tables,
    )


@torch.inference_mode()
def measure(arguments: argparse.Namespace) -> list[dict[str, float]]:
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    model = random_model(LLAMA_1B, dtype, device)
    weight_bytes = WeightPacker(model, dtype, device).finish()
    layers = model.self_attention_layers()
    speed = bandwidth(device)
    print(
        f"{weight_bytes / 1e9:.2f} GB of weights, {speed / 1e9:.0f} GB/s measured, torch {torch.__version__}",
        flush=True,
    )
    results = []
    for rows in arguments.rows:
        blocks = rows * -(-arguments.context // arguments.block_size)
        cache = KVCache(layers, blocks, arguments.block_size, dtype, device)
        kv_bytes = rows * arguments.context * KVCache.block_bytes(layers, 1, dtype)

        def step(cache: KVCache = cache, rows: int = rows) -> torch.Tensor:
            batch = decode_batch(rows, arguments.context, arguments.block_size, device)
            return model.logits(model.decode(batch, cache).hidden).argmax(-1).cpu()

        seconds = seconds_per_call(step, arguments.steps, device)
        floor = (weight_bytes + kv_bytes) / speed
        results.append(
            {"rows": rows, "step_ms": seconds * 1e3, "tokens_per_second": rows / seconds, "share": floor / seconds}
        )
        print(
            f"{rows:3d} rows, context {arguments.context}: {seconds * 1e3:8.2f} ms per step, "
            f"{rows / seconds:9.0f} tokens/s, floor {floor * 1e3:7.2f} ms, {floor / seconds:5.1%} of the bandwidth",
            flush=True,
        )
        del cache
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--context", type=int, default=1024, help="number of tokens of each row after the step")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--json", help="file to write the results to as JSON")
    arguments = parser.parse_args()
    results = measure(arguments)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
