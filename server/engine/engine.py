"""Everything a device does, one step at a time: whose turn it is, what came of it, what the numbers are.

Single-threaded: `add` and `abort` are called between steps. Knows models by name and messages; not sockets, processes
or checkpoints. Times are seconds of time.monotonic().
"""

from __future__ import annotations

import heapq
import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from server.engine.encode_queue import EncodeRequest
from server.engine.encoder_engine import EncoderEngine
from server.engine.events import EngineEvents, StepFailed
from server.engine.fairness import DeficitRoundRobin
from server.engine.generation_engine import GenerationEngine
from server.engine.sequence import SequenceGroup
from server.ipc.messages import (
    Encode,
    Failed,
    Generate,
    Stats,
    StepOutput,
    StepTiming,
    Vocabulary,
)

log = logging.getLogger("triptych.engine")

_MOST_PAST = 64
"""Deadlines of ended requests that may be kept beside as many as there are open ones."""


class DeviceLost(RuntimeError):
    """The device does not answer any more; only a new process can use it."""


@dataclass(frozen=True, slots=True)
class ModelEngine:
    """One loaded model: what it generates, what it encodes, or both. adapters: names that requests may use for it."""

    name: str
    generation: GenerationEngine | None = None
    encoding: EncoderEngine | None = None
    adapters: tuple[str, ...] = ()

    @property
    def has_work(self) -> bool:
        return any(part is not None and part.has_work for part in (self.generation, self.encoding))


class Engine:
    """The models of one device and their requests. epoch: the life of the worker, carried by every output."""

    def __init__(self, models: dict[str, ModelEngine], device: torch.device, epoch: int = 0) -> None:
        self.models = models
        self.device = device
        self.epoch = epoch
        self._by_name = {name: model for model in models.values() for name in (model.name, *model.adapters)}
        self._requests: dict[int, tuple[ModelEngine, SequenceGroup | EncodeRequest]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._turns = DeficitRoundRobin(models)
        self._events = EngineEvents()
        self._timings: list[StepTiming] = []
        self._encoded_last: set[str] = set()
        self._reported: Counter[str] = Counter()
        self._drafts_reported: dict[str, tuple[int, int]] = {}

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return bool(self._events) or any(model.has_work for model in self.models.values())

    def add(self, message: Generate | Encode) -> None:
        """Take a request in. What is wrong with it is told by the next `step`, like every other end."""
        model = self._by_name.get(message.model)
        requests: Sequence[SequenceGroup | EncodeRequest] = ()
        if model is not None and isinstance(message, Generate) and model.generation is not None:
            requests = model.generation.add(message, self._events, time.monotonic())
        elif model is not None and isinstance(message, Encode) and model.encoding is not None:
            requests = model.encoding.add(message, self._events)
        else:
            text = "this model is not loaded, or does not do this"
            entries = message.rows if isinstance(message, Generate) else [message]
            self._events.failed += [Failed(entry.request_id, "engine_error", text) for entry in entries]
        for request in requests:
            assert model is not None
            self._requests[request.request_id] = (model, request)
            if message.deadline is not None:
                self._remember(message.deadline, request.request_id)

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Learn how a model's tokens are spelled, before the first request that needs to know: see `Vocabulary`."""
        model = self.models.get(vocabulary.model)
        if model is not None and model.generation is not None:
            model.generation.set_vocabulary(vocabulary.tokens)

    def abort(self, request_id: int) -> None:
        """Forget a request and free its blocks; unknown ids are ignored, nothing answers."""
        self._end(request_id, "abort")

    def step(self) -> StepOutput | None:
        """Let one model do one step. Returns what happened since the last call; None if nothing did.

        Raises DeviceLost, after which the engine is of no use.
        """
        self._expire(time.monotonic())
        busy = {name for name, model in self.models.items() if model.has_work}
        name = self._turns.pick(busy)
        if name is not None:
            started = time.monotonic()
            try:
                timing = self._step(self.models[name])
                if timing is not None:
                    self._timings.append(timing)
            except StepFailed as error:
                log.exception("a step of %s failed; its requests are told", name)
                self._recover(error)
            self._turns.charge(name, time.monotonic() - started)
        return self._output()

    def _step(self, model: ModelEngine) -> StepTiming | None:
        """GenerationEngine and encoding of one model take turns."""
        generation, encoding = model.generation, model.encoding
        encode_first = model.name not in self._encoded_last
        if (
            encoding is not None
            and encoding.has_work
            and (encode_first or generation is None or not generation.has_work)
        ):
            self._encoded_last.add(model.name)
            return encoding.step(self._events, is_shared=self._is_generating())
        self._encoded_last.discard(model.name)
        return generation.step(self._events) if generation is not None else None

    def _is_generating(self) -> bool:
        return any(m.generation is not None and bool(m.generation.scheduler.running) for m in self.models.values())

    def _recover(self, error: Exception) -> None:
        """Go on if the device still answers: out of memory passes, a fault of the device does not."""
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        except RuntimeError as second:
            raise DeviceLost(str(second)) from error

    def _remember(self, deadline: float, request_id: int) -> None:
        heapq.heappush(self._deadlines, (deadline, request_id))
        # Requests end long before their deadlines; those that have ended are forgotten once there are too many.
        if len(self._deadlines) > 2 * len(self._requests) + _MOST_PAST:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._requests]
            heapq.heapify(self._deadlines)

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            self._end(heapq.heappop(self._deadlines)[1], "timeout")

    def _end(self, request_id: int, reason: Literal["abort", "timeout"]) -> None:
        model, request = self._requests.pop(request_id, (None, None))
        if model is None:
            return
        if isinstance(request, SequenceGroup) and model.generation is not None:
            model.generation.finish(request, reason, self._events)
        elif isinstance(request, EncodeRequest) and model.encoding is not None:
            model.encoding.finish(request, reason, self._events)

    def _output(self) -> StepOutput | None:
        events, self._events = self._events, EngineEvents()
        if not events:
            return None
        for request_id in [end.request_id for end in events.finished] + [end.request_id for end in events.failed]:
            self._requests.pop(request_id, None)
        for encoded in events.encoded:
            entry = self._requests.get(encoded.request_id)
            if entry is not None and isinstance(entry[1], EncodeRequest) and entry[1].finished:
                del self._requests[encoded.request_id]
        return StepOutput(self.epoch, events.tokens, events.finished, events.encoded, events.failed, events.prompts)

    def stats(self) -> Stats:
        """The heartbeat: how things stand, and what was counted since the last one."""
        generations = [model.generation for model in self.models.values() if model.generation is not None]
        encodings = [model.encoding for model in self.models.values() if model.encoding is not None]
        schedulers = [generation.scheduler for generation in generations]
        used: Counter[str] = Counter()
        total: Counter[str] = Counter()
        tables = [scheduler.blocks for scheduler in schedulers]
        pools = [(name, pool) for one in tables for name, pool in (("self", one.self_pool), ("cross", one.cross_pool))]
        pools += [("draft", one.drafter.pool) for one in generations if one.drafter is not None]
        for name, pool in pools:
            if pool is not None:
                used[name] += pool.used_blocks
                total[name] += pool.num_blocks
        counted = Counter(
            preemptions=sum(scheduler.num_preemptions for scheduler in schedulers),
            wasted=sum(one.num_wasted_tokens for one in tables),
            prefix_queries=sum(one.num_prefix_queries for one in tables),
            prefix_hits=sum(one.num_prefix_hits for one in tables),
        )
        queue_tokens = sum(encoding.queue.num_waiting_tokens for encoding in encodings) + sum(
            request.num_tokens + request.num_source_tokens for scheduler in schedulers for request in scheduler.waiting
        )
        waiting = sum(len(encoding.queue) for encoding in encodings) + sum(len(s.waiting) for s in schedulers)
        timings, self._timings = self._timings, []
        earlier, self._reported = self._reported, counted
        drafts = {one.name: (one.num_drafted_tokens, one.num_accepted_tokens) for one in generations if one.drafter}
        drafts_before, self._drafts_reported = self._drafts_reported, drafts
        return Stats(
            self.epoch,
            running=sum(len(scheduler.running) for scheduler in schedulers),
            waiting=waiting,
            queue_tokens=queue_tokens,
            kv_blocks_used=dict(used),
            kv_blocks_total=dict(total),
            device_memory_bytes=device_memory(self.device),
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
        )


def device_memory(device: torch.device) -> dict[str, int]:
    """Bytes: of this process on a CPU (`resident`), else of torch's allocator (`allocated`, `reserved`)."""
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
