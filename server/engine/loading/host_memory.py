"""Gives a model host memory for the blocks of its prefix cache that leave the device (`--kv-spill-memory`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from models.steps.kv_cache import KVCache
from server.engine.cache.block_manager import BlockManager
from server.engine.cache.host_pool import HostPool
from server.engine.device.host_blocks import HostBlocks, block_bytes
from server.engine.stepping.model_engine import ModelEngine
from server.ipc.wire.descriptions import EngineOptions

log = logging.getLogger("triptych.worker")


class HostMemoryError(Exception):
    """A model cannot have its share of host memory. The message is a part of a line for the operator."""


def host_pool(pool: BlockManager, cache: KVCache, memory_bytes: int) -> HostPool:
    """Host memory for copies of blocks of a KV cache.

    pool: the blocks of the cache. memory_bytes: the model's share of the host memory.
    Raises HostMemoryError if the share has no room for a block, or if it cannot be allocated or locked.
    """
    size = block_bytes(cache)
    count = memory_bytes // size
    if count == 0:
        raise HostMemoryError(f"its share of --kv-spill-memory ({memory_bytes:,} bytes) is less than one KV block")
    try:
        return HostPool(pool, count, HostBlocks(cache, count), size)
    except (RuntimeError, MemoryError) as error:
        raise HostMemoryError(
            f"cannot allocate and lock {count * size:,} bytes of host memory; use a smaller --kv-spill-memory, or let "
            "the process lock more memory (ulimit -l)"
        ) from error


def warn_without_host_pool(models: Iterable[ModelEngine], options: EngineOptions) -> None:
    """Log which models do not use the host memory of `--kv-spill-memory`: models without prefix cache, or with states.

    Models that do not generate are not named.
    """
    generations = [model.generation for model in models if model.generation is not None]
    names = [generation.name for generation in generations if generation.scheduler.blocks.host is None]
    if options.kv_spill_bytes and options.worker_index == 0 and names:
        log.warning(
            "--kv-spill-memory has no effect for %s: it needs a prefix cache, and a model without recurrent states",
            ", ".join(names),
        )
