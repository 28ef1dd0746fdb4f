"""Load and unload declared models within a memory budget. A single task loads them, one after another.

See docs/decisions/0151-models-on-demand.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from server.errors import StartError
from server.ipc.client.call import Call
from server.ipc.client.model_loads import ModelLoadFailed, WorkerLost
from server.ipc.wire.descriptions import ModelSpec
from server.ipc.wire.model_messages import ModelMeasured
from server.operations.on_demand.declared import DeclaredModel, Description
from server.operations.on_demand.unloading import Resident, who_leaves, whose_caches
from server.operations.waiting import Waiting

log = logging.getLogger("triptych.models")

SWEEP_SECONDS = 0.5
"""Time between two checks for models that have had no request for too long."""
KV_SHARE = 8
"""The KV cache of one model may take at most 1 / 8 of the budget, unless the smallest possible cache needs more."""


class Loads(Protocol):
    """The part of `ModelLoads` that the loader uses: it loads and unloads models in the workers."""

    changed: Callable[[], None]
    dropped: Callable[[str, str], None]

    @property
    def is_ready(self) -> bool: ...

    def is_available(self, name: str) -> bool: ...

    async def measure(self, spec: ModelSpec) -> ModelMeasured: ...

    async def load(self, spec: ModelSpec, kv_cache_bytes: int) -> None: ...

    async def give_back_cache(self, name: str) -> None: ...

    async def unload(self, name: str) -> None: ...


@dataclass(frozen=True)
class TextParts:
    """Functions for the parts of a model that are in the HTTP process: tokenizer, templates, languages.

    size_bytes: returns the memory that the parts of a model need.
    load: reads the parts of a model. Raises StartError.
    drop: removes the parts of a model from memory, if they were read.
    describe: reads the description of a model. Raises StartError.
    """

    size_bytes: Callable[[ModelSpec], int]
    load: Callable[[ModelSpec], Awaitable[None]]
    drop: Callable[[DeclaredModel], Awaitable[None]]
    describe: Callable[[ModelSpec], Awaitable[Description]]


class ModelEvents(Protocol):
    """Receives changes of models, to update the metrics."""

    def on_models(self, models: Iterable[DeclaredModel], budget_bytes: int) -> None: ...

    def on_model_load(self, name: str, outcome: str, seconds: float) -> None: ...

    def on_model_unload(self, name: str, reason: str) -> None: ...

    def on_model_gone(self, name: str) -> None: ...


class Changes:
    """Lets requests wait until the state of any declared model changes."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all waiting requests, because a model has changed."""
        for future in self._waiters:
            if not future.done():
                future.set_result(None)

    async def wait(self, call: Call | None = None) -> None:
        """Wait until any model has changed.

        call: a call whose time limits and disconnect end the wait with the errors of `Waiting.result`; None to wait
            without limit.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(future)
        try:
            if call is None:
                await future
            else:
                await Waiting(future, call, call.limits, "its model was being loaded").result()
        finally:
            self._waiters.discard(future)


class OnDemandLoader:
    """Loads requested models, and unloads models whose memory is needed or that have had no request for too long.

    models: the declared models by name; the registry adds and removes them.
    loads: loads and unloads models in the workers.
    text: functions for the text parts of models in this process.
    budget_bytes: limit on the memory of all models; None for no limit.
    kv_cache_bytes: limit on the KV cache of one model; None for no limit.
    num_workers: number of workers. Every worker has every loaded model.
    events: receives changes for the metrics.
    clock: returns the time in seconds.
    forget_if_gone: removes a model from `models` if its files were deleted and it is not in memory.
    device_bytes: returns the memory that models may take of each CUDA device; 0 on a CPU. Above 0, it replaces
        `budget_bytes`, and only the memory on one device is counted: one worker, without tokenizers.
    """

    def __init__(
        self,
        models: Mapping[str, DeclaredModel],
        loads: Loads,
        text: TextParts,
        budget_bytes: int | None,
        kv_cache_bytes: int | None,
        num_workers: int,
        events: ModelEvents,
        clock: Callable[[], float],
        forget_if_gone: Callable[[DeclaredModel], None],
        device_bytes: Callable[[], int],
    ) -> None:
        self._budget_bytes = budget_bytes
        self._device_bytes = device_bytes
        self.changes = Changes()
        self._models = models
        self._loads = loads
        self._text = text
        self._kv_cache_bytes = kv_cache_bytes
        self._workers_on_cpu = num_workers
        self._events = events
        self._clock = clock
        self._forget_if_gone = forget_if_gone
        self._queue: deque[DeclaredModel] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._emptying: set[str] = set()
        self._taking: dict[str, asyncio.Task[None]] = {}
        self._drops: list[asyncio.Future[None]] = []
        loads.changed = self.changes.notify
        loads.dropped = self._on_dropped

    @property
    def budget_bytes(self) -> int | None:
        """Limit in bytes on the memory of all models: on each CUDA device, or on the machine with a CPU.

        None for no limit.
        """
        return self._device_bytes() or self._budget_bytes

    @property
    def _num_workers(self) -> int:
        """Number of workers that share the budget."""
        return 1 if self._device_bytes() else self._workers_on_cpu

    @property
    def used_bytes(self) -> int:
        """Bytes that are counted for all models together: on each CUDA device, or on the machine with a CPU."""
        return sum(model.size_bytes for model in self._models.values())

    def report(self) -> None:
        """Report the states and sizes of all models to the metrics."""
        self._events.on_models(self._models.values(), self.budget_bytes or 0)

    def start(self) -> None:
        """Start the tasks that load queued models and unload idle ones."""
        self._tasks = [
            asyncio.create_task(self._load_queued(), name="load models"),
            asyncio.create_task(self._sweep(), name="unload idle models"),
        ]
        self.report()

    async def stop(self) -> None:
        """Stop the tasks that load and unload models. Loaded models stay loaded."""
        tasks = [*self._tasks, *self._leaving.values(), *self._taking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_usable(self, model: DeclaredModel) -> bool:
        """Whether a loaded model can be used now: at least one worker has it, and it has its KV caches."""
        has_cache = model.has_cache and model.name not in self._emptying
        return model.state == "loaded" and has_cache and self._loads.is_available(model.name)

    def enqueue(self, model: DeclaredModel) -> None:
        """Add a model to the end of the queue of models to load."""
        model.state = "loading"
        self._queue.append(model)
        self.changes.notify()

    def take_cache(self, model: DeclaredModel) -> None:
        """Reserve memory for the KV caches of a loaded model that has given them back.

        If there is no room, memory of other models is freed first, as for a model that is to be loaded.
        No effect on a model that has its caches, or is giving them back now.
        """
        if model.state != "loaded" or model.has_cache or model.name in (*self._emptying, *self._taking):
            return
        task = self._taking[model.name] = asyncio.create_task(self._take_cache(model), name="take KV cache")
        task.add_done_callback(lambda done: self._taking.pop(model.name, None))

    async def leave(self, model: DeclaredModel, reason: str) -> None:
        """Unload a model when its running requests have ended, and wait for that. reason: text for log and metrics."""
        task = self._leaving.get(model.name)
        if task is None:
            model.state = "unloading"
            task = self._leaving[model.name] = asyncio.create_task(self._unload(model, reason), name="unload model")
            task.add_done_callback(lambda done: self._leaving.pop(model.name, None))
        await asyncio.shield(task)

    def _on_dropped(self, name: str, reason: str) -> None:
        """Record that a restarted worker could not load a model that it had before."""
        model = self._models.get(name)
        if model is not None:
            model.failed(_without_paths(reason, model), self._clock())
            self._drops = [task for task in self._drops if not task.done()]
            self._drops.append(asyncio.ensure_future(self._text.drop(model)))
            self.report()
            self.changes.notify()

    async def _load_queued(self) -> None:
        """Task that loads queued models, one after another, and records failures. Never ends."""
        while True:
            while not self._queue:
                await self.changes.wait()
            model = self._queue.popleft()
            started = self._clock()
            try:
                await self._load(model)
            except WorkerLost as error:
                if model.is_suspect:
                    await self._fail(model, str(error))
                else:
                    log.warning("%s; it is tried once more", error)
                    await self._text.drop(model)
                    model.left()
                    model.is_suspect = True
                    self.enqueue(model)
            except Exception as error:  # whatever it is, it is the failure of this model
                is_known = isinstance(error, ModelLoadFailed | StartError)
                if not is_known:
                    log.error("a fault while loading %s", model.name, exc_info=error)
                await self._fail(model, str(error) if is_known else f"a fault of the server ({type(error).__name__})")
            seconds = self._clock() - started
            if model.state in ("loaded", "failed"):
                self._events.on_model_load(model.name, model.state, seconds)
            self._forget_if_gone(model)
            self.report()
            self.changes.notify()

    async def _load(self, model: DeclaredModel) -> None:
        """Load one model, after unloading others if it needs their memory.

        If others must be unloaded and no request waits for the model any more, it is not loaded.
        Raises ModelLoadFailed, StartError, or WorkerLost.
        """
        while not self._loads.is_ready:
            await self.changes.wait()
        need = await self._loads.measure(model.spec)
        kv_bytes = self._kv_bytes(need)
        caches = self._num_workers * kv_bytes
        fixed = self._num_workers * (need.weight_bytes + need.step_bytes)
        if not self._device_bytes():
            fixed += self._text.size_bytes(model.spec)
        if not await self._make_room(model, fixed + caches):
            model.left()
            return
        model.fixed_bytes, model.cache_bytes, model.wanted_cache_bytes = fixed, caches, caches
        began = self._clock()
        text = asyncio.ensure_future(self._text.load(model.spec))
        try:
            await self._loads.load(model.spec, kv_bytes)
            await text
        except BaseException:
            text.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await text
            raise
        model.state, model.reason, model.failures = "loaded", "", 0
        model.is_suspect = False
        model.loads += 1
        model.load_seconds = self._clock() - began
        model.used_at = self._clock()
        log.info("model %s is loaded: %d MiB in %.1f s", model.name, model.size_bytes >> 20, model.load_seconds)

    async def _fail(self, model: DeclaredModel, reason: str) -> None:
        await self._loads.unload(model.name)
        await self._text.drop(model)
        model.failed(_without_paths(reason, model), self._clock())
        log.error("%s; it is tried again after %.0f s", reason, model.retry_at - self._clock())

    def _kv_bytes(self, need: ModelMeasured) -> int:
        """Size of a model's KV cache in each worker, in bytes. need: measured sizes of the model."""
        limits = [need.kv_bytes]
        if self._kv_cache_bytes is not None:
            limits.append(self._kv_cache_bytes)
        if self.budget_bytes is not None:
            limits.append(self.budget_bytes // KV_SHARE // self._num_workers)
        return max(min(limits), need.min_kv_bytes)

    async def _make_room(self, model: DeclaredModel, size: int) -> bool:
        """Free `size` bytes: the KV caches of idle models if they are enough; otherwise models are unloaded.

        Returns False if no request waits for the model any more, or if it was unloaded meanwhile. Raises
        ModelLoadFailed for a model that is larger than the budget.
        """
        state = model.state
        budget = self.budget_bytes
        if budget is None:
            return True
        if size > budget:
            raise ModelLoadFailed(
                f"model {model.name!r} needs {size >> 20:,} MiB, and the budget has {budget >> 20:,} MiB (--memory)"
            )
        while self.used_bytes + size > budget:
            if not model.waiting or model.state != state:
                return False
            lacking = self.used_bytes + size - budget
            others = self._residents(model)
            emptied = whose_caches(others, lacking)
            for resident in emptied:
                await self._give_back_cache(self._models[resident.name])
            if emptied:
                continue
            leaving = who_leaves(others, lacking)
            if leaving is None:  # the rest of the memory is that of a model that is being loaded
                await self.changes.wait()
                continue
            for resident in leaving:
                await self.leave(self._models[resident.name], "room")
        return bool(model.waiting) and model.state == state

    def _residents(self, asking: DeclaredModel) -> list[Resident]:
        """The models in memory, without the one that asks for room.

        On a CUDA device no model gives back its KV caches alone, because captured steps contain the addresses of the
        caches.
        """
        now, keeps_caches = self._clock(), bool(self._device_bytes())
        return [
            Resident(
                model.name,
                model.size_bytes,
                model.load_seconds,
                now - model.used_at,
                model.running + model.waiting > 0,
                0 if keeps_caches or model.state != "loaded" or model.name in self._emptying else model.cache_bytes,
            )
            for model in self._models.values()
            if model.state in ("loaded", "unloading") and model is not asking
        ]

    async def _give_back_cache(self, model: DeclaredModel) -> None:
        """Take the memory of the KV caches of an idle model away. Its next request takes it again.

        No effect if the model got a request or was unloaded meanwhile.
        """
        if model.running or model.waiting or model.state != "loaded" or model.name in self._emptying:
            return
        self._emptying.add(model.name)
        try:
            await self._loads.give_back_cache(model.name)
            log.info("model %s has given back its KV cache: %d MiB", model.name, model.cache_bytes >> 20)
            model.cache_bytes = 0
        finally:
            self._emptying.discard(model.name)
        self.report()
        self.changes.notify()

    async def _take_cache(self, model: DeclaredModel) -> None:
        if await self._make_room(model, model.wanted_cache_bytes):
            model.cache_bytes = model.wanted_cache_bytes
            self.report()
        self.changes.notify()

    async def _unload(self, model: DeclaredModel, reason: str) -> None:
        while model.running:
            await self.changes.wait()
        self.report()
        await self._loads.unload(model.name)
        await self._text.drop(model)
        model.left()
        log.info("model %s is unloaded (%s)", model.name, reason)
        self._events.on_model_unload(model.name, reason)
        self._forget_if_gone(model)
        self.report()
        self.changes.notify()

    async def _sweep(self) -> None:
        """Task that unloads models that have had no request for too long. Never ends."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self._clock()
            for model in list(self._models.values()):
                expires = model.expires_at
                if expires is not None and expires <= now and not model.running and not model.waiting:
                    await self.leave(model, "idle")


def _without_paths(reason: str, model: DeclaredModel) -> str:
    """Remove the path of the model's directory from the reason of a failed load, because clients read the reason."""
    return reason.replace(model.spec.directory, "its directory")
