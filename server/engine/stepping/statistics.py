"""Statistics of all models of one device: the contents of `Stats`, the heartbeat message."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection

import torch

from server.engine.cache.block_manager import BlockManager
from server.engine.cache.state_tables import StateBlockTables
from server.engine.stepping.model_engine import ModelEngine
from server.ipc.wire.step_messages import Stats, StepTiming

HOST_EVENTS = ("spilled", "restored", "damaged")
"""Events of a block in host memory: keys of `Stats.host_blocks`."""


class Statistics:
    """Collects the contents of `Stats`. Keeps the last counters, because a message states how much they have grown.

    epoch: number of this life of the worker, part of each message.
    timings: measurements of the steps since the last message.
    """

    def __init__(self, device: torch.device, epoch: int) -> None:
        self._device, self._epoch = device, epoch
        self.timings: list[StepTiming] = []
        self._reported: Counter[str] = Counter()
        self._drafts_reported: dict[str, tuple[int, int]] = {}

    def forget(self, model: ModelEngine) -> None:
        """Forget the counters of a model that is dropped."""
        self._reported.subtract(_counts([model]))
        self._drafts_reported.pop(model.name, None)

    def take(self, models: Collection[ModelEngine], arriving: Counter[str], arriving_tokens: int) -> Stats:
        """The next message: present numbers of requests and blocks, and counts of events since the last call.

        arriving: by model, number of rows that are not sequence groups yet. A model without any is absent.
        arriving_tokens: number of tokens of these rows.
        """
        generations = [model.generation for model in models if model.generation is not None]
        encodings = [model.encoding for model in models if model.encoding is not None]
        schedulers = [generation.scheduler for generation in generations]
        used: Counter[str] = Counter()
        total: Counter[str] = Counter()
        tables = [scheduler.blocks for scheduler in schedulers]
        pools: list[tuple[str, BlockManager | None]] = [pool for table in tables for pool in table.pools.items()]
        pools += [("draft", generation.drafter.pool) for generation in generations if generation.drafter is not None]
        for name, pool in pools:
            if pool is not None:
                used[name] += pool.used_blocks
                total[name] += pool.num_blocks
        hosts = [table.host for table in tables if table.host is not None]
        host_bytes = {
            "used": sum(host.used_slots * host.slot_bytes for host in hosts),
            "total": sum(host.num_slots * host.slot_bytes for host in hosts),
        }
        state_bytes: Counter[str] = Counter()
        for table in tables:
            if isinstance(table, StateBlockTables):
                state_bytes.update(table.state_bytes())
        counted = _counts(models)
        waiting_tokens = sum(encoding.queue.num_waiting_tokens for encoding in encodings) + sum(
            request.num_tokens + request.num_source_tokens for scheduler in schedulers for request in scheduler.waiting
        )
        waiting = arriving + Counter({model.name: model.num_waiting for model in models})
        timings, self.timings = self.timings, []
        earlier, self._reported = self._reported, counted
        drafts = {
            generation.name: (generation.new_tokens.num_drafted_tokens, generation.new_tokens.num_accepted_tokens)
            for generation in generations
            if generation.drafter
        }
        drafts_before, self._drafts_reported = self._drafts_reported, drafts
        return Stats(
            self._epoch,
            running=sum(len(scheduler.running) for scheduler in schedulers),
            waiting=waiting.total(),
            queue_tokens=arriving_tokens + waiting_tokens,
            kv_blocks_used=dict(used),
            kv_blocks_total=dict(total),
            device_memory_bytes=_device_memory(self._device),
            steps=timings,
            preemptions=counted["preemptions"] - earlier["preemptions"],
            wasted_tokens=counted["wasted"] - earlier["wasted"],
            prefix_queries=counted["prefix_queries"] - earlier["prefix_queries"],
            prefix_hits=counted["prefix_hits"] - earlier["prefix_hits"],
            drafts={
                name: (drafted - before[0], accepted - before[1])
                for name, (drafted, accepted) in drafts.items()
                for before in [drafts_before.get(name, (0, 0))]
            },
            state_bytes=dict(state_bytes),
            host_blocks={event: counted[event] - earlier[event] for event in HOST_EVENTS} if hosts else {},
            host_bytes=host_bytes if hosts else {},
            running_rows={model.name: count for model in models if (count := model.num_running)},
            waiting_rows=dict(waiting),
        )


def _counts(models: Collection[ModelEngine]) -> Counter[str]:
    """Counters for `Stats`, summed over the models: preemptions, wasted tokens, prefix cache, blocks in host memory."""
    schedulers = [model.generation.scheduler for model in models if model.generation is not None]
    hosts = [scheduler.blocks.host for scheduler in schedulers if scheduler.blocks.host is not None]
    return Counter(
        spilled=sum(host.num_spilled for host in hosts),
        restored=sum(host.num_restored for host in hosts),
        damaged=sum(host.num_damaged for host in hosts),
        preemptions=sum(scheduler.num_preemptions for scheduler in schedulers),
        wasted=sum(scheduler.blocks.num_wasted_tokens for scheduler in schedulers),
        prefix_queries=sum(scheduler.blocks.num_prefix_queries for scheduler in schedulers),
        prefix_hits=sum(scheduler.blocks.num_prefix_hits for scheduler in schedulers),
    )


def _device_memory(device: torch.device) -> dict[str, int]:
    """Memory in use, in bytes, by kind: on a CPU `resident` (the process), on a GPU `allocated` and `reserved` (torch).

    Empty if the system does not tell the resident memory.
    """
    if device.type == "cuda":
        return {
            "allocated": torch.cuda.memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
        }
    try:
        with open("/proc/self/statm", "rb") as file:
            return {"resident": int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")}
    except OSError:
        return {}
