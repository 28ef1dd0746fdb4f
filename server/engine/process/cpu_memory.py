"""Default size of the KV caches on a CPU, and a warning if a size that the operator has chosen may not fit.

By default, each model gets enough memory for one sequence of `AGENT_TOKENS` tokens. But all workers together take at
most a part of the memory that was free when the server started, after subtracting the weights. The HTTP process reads
the free memory once, so that a restarted worker gets the same size. A cache takes memory only when blocks are first
written (`models.lazy_zeros`). See docs/decisions/0114-second-turn.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.speculation import agent_shares
from server.ipc.wire.descriptions import AGENT_TOKENS, EngineOptions, ModelInfo

log = logging.getLogger("triptych.worker")

MIN_WANTED_BYTES = 1 << 30
"""Least wanted total size of the KV caches of a worker, so that several sequences can run at the same time."""
MIN_BYTES = 64 << 20
"""Smallest default size of the KV caches of a worker, used even on a machine without free memory."""
FREE_SHARE = 0.5
"""Share of the memory left by the weights that the KV caches of all workers take at most by default.

Steps and other programs need the rest.
"""


def default_kv_cache_bytes(
    loaded: Sequence[LoadedCheckpoint], drafts: Mapping[str, LoadedCheckpoint], options: EngineOptions
) -> int:
    """Default size in bytes for the KV caches of all models of a worker together.

    The first worker logs a warning if the size is too small for one sequence of `AGENT_TOKENS` tokens per model.

    loaded: all models. drafts: draft models by the name of their target model.
    """
    needed = sum(agent_shares(loaded, drafts, options))
    wanted = max(needed, MIN_WANTED_BYTES)
    if not options.free_memory_bytes:
        return wanted
    left = options.free_memory_bytes - _weight_bytes((*loaded, *drafts.values()))
    size = min(wanted, max(int(FREE_SHARE * left) // options.num_workers, MIN_BYTES))
    if size < needed and options.worker_index == 0:
        log.warning(
            "the KV cache of a worker has %d MiB; a sequence of %d tokens of each model needs %d MiB. By default, the "
            "caches take at most %d%% of the memory that weights leave free (%d MiB); --kv-cache-memory overrides this",
            size >> 20,
            AGENT_TOKENS,
            needed >> 20,
            100 * FREE_SHARE,
            max(left, 0) >> 20,
        )
    return size


def warn_of_too_much(
    loaded: Sequence[LoadedCheckpoint],
    drafts: Mapping[str, LoadedCheckpoint],
    infos: Iterable[ModelInfo],
    options: EngineOptions,
) -> None:
    """Log a warning if the KV caches are larger than the memory that the weights leave free.

    The operator has set their size. The start succeeds nevertheless, because caches take memory only as they fill up.

    loaded, drafts: the models and the draft models. infos: descriptions of the models.
    """
    if not options.free_memory_bytes or options.worker_index:
        return
    size = options.num_workers * sum(info.kv_bytes for info in infos)
    left = options.free_memory_bytes - _weight_bytes((*loaded, *drafts.values()))
    if size > left:
        log.warning(
            "the KV caches take up to %d MiB, but the weights leave %d MiB free: when the caches fill up, the system "
            "may end the server (--kv-cache-memory)",
            size >> 20,
            max(left, 0) >> 20,
        )


def _weight_bytes(models: Iterable[LoadedCheckpoint]) -> int:
    """Bytes of the weights of all models. A model that occurs several times is counted once.

    All workers together take this memory only once.
    """
    return sum(model.model.weight_bytes for model in {id(model): model for model in models}.values())
