"""Advise a setting of `--dtype` or `--quantize` for a model on this machine, by memory and estimated speed.

The speeds are estimates from a short measurement. Other programs make them too low, and a model that fits the caches of
the processor is faster. A decode step reads all weights once, so the memory bandwidth limits the speed of one stream.
The speed of prompts is limited by matrix products. Imports torch only when it measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from server.ipc.wire.descriptions import ModelInfo

_READ_BYTES = 256 << 20
"""Size of the tensor whose reading is timed. It is larger than the caches of a processor."""
_SIZE = 1024
"""Rows and columns of the matrices whose product is measured."""
_ROUNDS = 3
MIN_TOKENS_PER_SECOND = 8.0
"""Least speed of one stream for a setting to be advised, about the speed at which people read."""
MEMORY_SHARE = 0.9
"""Share of the free memory for weights and KV cache. Steps need the rest."""
COMPARED = ("float32", "bfloat16", "int8", "int6", "int5", "int4")
"""The settings to compare, by falling precision."""


@dataclass(frozen=True)
class Machine:
    """The measured speed and memory of this machine.

    cores: number of threads. read_bytes: bytes read from memory per second. operations: float32 operations per second.
    free_bytes: bytes of memory that are free.
    """

    cores: int
    read_bytes: float
    operations: float
    free_bytes: int


def measure(cores: int, free_bytes: int) -> Machine:
    """Measure the speed of this machine, which takes about half a second.

    cores: number of threads. free_bytes: bytes of memory that are free.
    """
    import torch

    torch.set_num_threads(cores)
    with torch.inference_mode():
        read = torch.ones(_READ_BYTES // 4)
        product = torch.ones(_SIZE, _SIZE)
        read_seconds = min(_seconds(read.sum) for _ in range(_ROUNDS))
        product_seconds = min(_seconds(lambda: product @ product) for _ in range(_ROUNDS))
    return Machine(cores, _READ_BYTES / read_seconds, 2 * _SIZE**3 / product_seconds, free_bytes)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def advice(info: ModelInfo, machine: Machine, sizes: Mapping[str, int]) -> Sequence[tuple[str, str]]:
    """Return the rows of a table, (name, text): the machine, each setting, and the advised setting.

    A quantized checkpoint has a row for its own format only, and no advice.

    sizes: bytes of the weights with each setting; empty if the sizes are not known.
    """
    rows = [
        (
            "machine",
            f"{machine.cores} cores, reads {machine.read_bytes / 1e9:.1f} GB/s, "
            f"{machine.operations / 1e9:,.0f} GFLOP/s in float32, {machine.free_bytes / 2**30:.1f} GiB free",
        )
    ]
    is_stored = info.quantization is not None or info.checkpoint_format != "" or not sizes
    compared = {name: sizes[name] for name in COMPARED if name in sizes}
    if is_stored:
        compared = {info.quantization or info.checkpoint_format or info.dtype: info.weight_bytes}
    best = fallback = None
    for name, weights in compared.items():
        room = machine.free_bytes * MEMORY_SHARE - weights
        text = f"{weights / 2**20:,.0f} MiB of weights"
        fits = room > 0
        if fits and info.kv_bytes:
            value_bytes = _cache_value_bytes(info) if is_stored else 4 if name == "float32" else 2
            tokens = room / (info.kv_bytes / info.kv_tokens * value_bytes / _cache_value_bytes(info))
            text += f", KV cache for up to {tokens:,.0f} tokens"
            fits = tokens >= min(info.context_tokens, info.agent_tokens)
        speed = machine.read_bytes / max(weights, 1)
        if info.kv_tokens:
            text += f", about {speed:,.1f} tokens/s for one stream"
        text += f", prompts about {machine.operations / (2 * max(info.parameters, 1)):,.0f} tokens/s"
        if not fits:
            text += "; too little memory" + (" for one full context" if room > 0 else "")
        else:
            fallback = name
            if best is None and (speed >= MIN_TOKENS_PER_SECOND or not info.kv_tokens):
                best = name
        rows.append((name, text))
    if not is_stored:
        rows.append(("advice", _flags(best or fallback)))
    return rows


def _flags(setting: str | None) -> str:
    if setting is None:
        return "this model does not fit into the free memory"
    return f"--dtype {setting}" if setting in ("float32", "bfloat16") else f"--quantize {setting}"


def _cache_value_bytes(info: ModelInfo) -> int:
    """Bytes of one number in the KV cache of the loaded model."""
    if info.kv_cache_dtype != "auto":
        return 1
    return 4 if info.dtype == "float32" and info.quantization is None else 2
