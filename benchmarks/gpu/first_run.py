"""Stage of `benchmarks.gpu` with the first start of a server on a machine: kernels to compile, a KV cache to size."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import random_checkpoints
from benchmarks.contestants import http_server
from benchmarks.gpu.device import Limits
from benchmarks.gpu.engine import subject
from benchmarks.gpu.row import Result, Row, Setup, Stage
from benchmarks.random_models import config_of

START_SECONDS = 230.0
"""Longest time of a start in which all kernels are compiled."""


def first_run(shape: str) -> Stage:
    """Return the stage that starts a server twice without --kv-cache-memory, first without compiled kernels."""

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        kernels = setup.models / "kernels"
        start = cache(partial(_start, shape, kernels, setup, limits))

        def first() -> Result:
            shutil.rmtree(kernels, ignore_errors=True)
            seconds, _ = start(1)
            return Result(seconds, "s", note=f"{sum(1 for _ in kernels.rglob('*.cubin'))} kernels compiled")

        def second() -> Result:
            if limits.device == "cuda" and not kernels.exists():
                start(1)
            return Result(start(2)[0], "s", note="kernels from the cache on disk")

        def kv_cache() -> Result:
            (model,) = start(2)[1]["models"]
            share = None
            if limits.device == "cuda":
                share = model["kv_bytes"] / torch.cuda.get_device_properties(0).total_memory
            return Result(model["kv_bytes"] / 2**30, "GiB", share=share, note=f"{model['kv_tokens']:,} tokens")

        yield Row(f"{shape}, first start, without compiled kernels", first)
        yield Row(f"{shape}, second start", second)
        yield Row(f"{shape}, KV cache without --kv-cache-memory", kv_cache)

    return rows_of


def _start(shape: str, kernels: Path, setup: Setup, limits: Limits, number: int) -> tuple[float, dict[str, Any]]:
    """Start a server, and stop it. Returns the seconds until it was ready, and its answer to /info.

    kernels: directory of Triton's compiled kernels. number: index of the start.
    """
    directory = setup.models / shape
    hf = config_of(shape, setup.tiny)
    random_checkpoints.write(directory, hf, limits.torch_dtype, limits.torch_device)
    environment = {"TRITON_CACHE_DIR": str(kernels)}
    server = http_server.Server(subject(directory, shape, limits), limits.device, None, (), environment)
    try:
        server.wait(START_SECONDS)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/info") as answer:
            return server.ready_seconds, json.load(answer)
    finally:
        server.stop()
