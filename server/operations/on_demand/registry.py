"""Declared models: load them when a request asks for them, within a budget of memory, and unload them.

A request calls `demand` before it uses a model, and holds the model until its call closes. One task loads models, one
after the other. See docs/decisions/0151-models-on-demand.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from server.errors import InvalidRequest, ModelNotFound, NotReady, StartError
from server.ipc.client.call import Call
from server.ipc.client.model_loads import ModelLoadFailed, WorkerLost
from server.ipc.wire.descriptions import ModelSpec
from server.ipc.wire.messages import ModelMeasured
from server.limits.model_memory import Resident, who_leaves
from server.operations.on_demand.declared import DeclaredModel, Description
from server.operations.waiting import Waiting

log = logging.getLogger("triptych.models")

SWEEP_SECONDS = 0.5
"""Time between two checks for models that have been idle for too long."""
KV_SHARE = 8
"""The KV cache of one model gets at most this fraction of the budget: 1 / 8. Its smallest cache may need more."""


class Loads(Protocol):
    """The part of `ModelLoads` that the registry uses."""

    changed: Callable[[], None]
    dropped: Callable[[str, str], None]

    @property
    def is_ready(self) -> bool: ...

    def is_available(self, name: str) -> bool: ...

    async def measure(self, spec: ModelSpec) -> ModelMeasured: ...

    async def load(self, spec: ModelSpec, kv_cache_bytes: int) -> None: ...

    async def unload(self, name: str) -> None: ...


@dataclass(frozen=True)
class TextParts:
    """Reads and drops the parts of a model that are in the HTTP process: tokenizer, templates, languages.

    size_bytes: memory that they need. load: reads them; raises StartError. drop: drops them, if there are any.
    describe: reads the description of a model; raises StartError.
    """

    size_bytes: Callable[[ModelSpec], int]
    load: Callable[[ModelSpec], Awaitable[None]]
    drop: Callable[[DeclaredModel], Awaitable[None]]
    describe: Callable[[ModelSpec], Awaitable[Description]]


class ModelSources(Protocol):
    """Finds models and adapters that are declared while the server runs.

    discover: the models in `--models-dir`; None if nothing new is known about them.
    model: a model that an operator names by a path or a hub id. Raises InvalidRequest.
    adapter: directory of an adapter that an operator names in the same way. Raises InvalidRequest.
    """

    async def discover(self) -> Mapping[str, DeclaredModel] | None: ...

    async def model(self, name: str, source: str) -> DeclaredModel: ...

    async def adapter(self, model: DeclaredModel, source: str) -> str: ...


class ModelEvents(Protocol):
    """Receives changes for the metrics."""

    def on_models(self, models: Iterable[DeclaredModel], budget_bytes: int) -> None: ...

    def on_model_load(self, name: str, outcome: str, seconds: float) -> None: ...

    def on_model_unload(self, name: str, reason: str) -> None: ...

    def on_model_gone(self, name: str) -> None: ...


class ModelRegistry:
    """The declared models of a server. All methods must be called on one event loop.

    models: the declared models.
    loads: loads and unloads models in the workers.
    text: reads and drops the text parts of models in this process.
    sources: finds models and adapters.
    budget_bytes: limit on the memory of all models; None for no limit.
    kv_cache_bytes: limit on the KV cache of one model; None for no limit.
    num_workers: number of workers, each of which has every loaded model.
    events: receives changes for the metrics.
    clock: time in seconds.
    """

    def __init__(
        self,
        models: Iterable[DeclaredModel],
        loads: Loads,
        text: TextParts,
        sources: ModelSources,
        budget_bytes: int | None,
        kv_cache_bytes: int | None,
        num_workers: int,
        events: ModelEvents,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.models: dict[str, DeclaredModel] = {model.name: model for model in models}
        self.budget_bytes = budget_bytes
        self._loads = loads
        self._text = text
        self._sources = sources
        self._kv_cache_bytes = kv_cache_bytes
        self._num_workers = num_workers
        self._events = events
        self._clock = clock
        self._waiters: set[asyncio.Future[None]] = set()
        self._queue: deque[DeclaredModel] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._drops: list[asyncio.Future[None]] = []
        self._discovering = asyncio.Lock()
        self._held: dict[Call, list[DeclaredModel]] = {}
        loads.changed = self._notify
        loads.dropped = self._on_dropped

    @property
    def used_bytes(self) -> int:
        """Memory that is counted for all models."""
        return sum(model.size_bytes for model in self.models.values())

    def about(self) -> dict[str, Any]:
        """All models as `/info` describes them."""
        now = self._clock()
        models = [model.about(now) for model in self.models.values()]
        return {"memory_bytes": self.budget_bytes, "used_bytes": self.used_bytes, "models": models}

    def start(self) -> None:
        """Begin to load and unload models."""
        self._tasks = [
            asyncio.create_task(self._load_queued(), name="load models"),
            asyncio.create_task(self._sweep(), name="unload idle models"),
        ]
        self._report()

    async def stop(self) -> None:
        """End the tasks of `start`. Loaded models stay."""
        tasks = [*self._tasks, *self._leaving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def find(self, name: str) -> DeclaredModel | None:
        """The model that has a name, or an adapter with it; None for an unknown name."""
        found = self.models.get(name)
        return found or next((model for model in self.models.values() if name in model.spec.adapters), None)

    async def find_again(self, name: str) -> DeclaredModel | None:
        """The same as `find`, among the models that `--models-dir` has now. A model in memory is found without that."""
        found = self.find(name)
        if found is None or not found.is_in_memory:
            await self.discover()
        return self.find(name)

    async def discover(self) -> None:
        """Declare the models that have come to `--models-dir`, and forget those that were deleted there."""
        async with self._discovering:
            there = await self._sources.discover()
            if there is None:
                return
            for model in [model for model in self.models.values() if model.is_in_directory]:
                same = there.get(model.name)
                model.is_gone = same is None or same.spec.directory != model.spec.directory
                self._forget_if_gone(model)
            for model in there.values():
                self.declare(model)

    async def declare_source(self, name: str, source: str) -> None:
        """Declare a model that an operator names.

        source: path, or id on the hub.
        Raises InvalidRequest for a source that cannot be found, and for a name that another model has.
        """
        model = await self._sources.model(name, source)
        found = self.find(name)
        if found is None:
            self.declare(model)
        elif found.spec.directory != model.spec.directory:
            raise InvalidRequest("another model has this name; leave out `source` to load that one", "source")

    async def resolve_adapter(self, model: DeclaredModel, source: str) -> str:
        """Directory of an adapter. source: path, or id on the hub. Raises InvalidRequest."""
        return await self._sources.adapter(model, source)

    async def descriptions(self) -> list[tuple[DeclaredModel, Description]]:
        """The models and their descriptions. Models whose files cannot be read are left out."""
        found = []
        for model in list(self.models.values()):
            if model.description is None and not model.is_unreadable:
                try:
                    model.description = await self._text.describe(model.spec)
                except StartError as error:
                    model.is_unreadable = True
                    log.warning("%s; requests without `model` do not use it", error)
            if model.description is not None:
                found.append((model, model.description))
        return found

    def declare(self, model: DeclaredModel) -> None:
        """Add a model. A name that is in use keeps its model."""
        if not any(self.find(name) for name in model.names):
            log.info("model %s is declared", model.name)
            self.models[model.name] = model
            self._report()

    def _forget_if_gone(self, model: DeclaredModel) -> None:
        """Remove a model whose files were deleted. One in memory stays until it is unloaded."""
        if model.is_gone and not (model.is_in_memory or model.waiting) and self.models.get(model.name) is model:
            del self.models[model.name]
            log.info("model %s is not declared any more: its files are gone", model.name)
            self._events.on_model_gone(model.name)
            self._report()

    async def demand(self, call: Call, model: DeclaredModel) -> None:
        """Wait until a model is loaded, and hold it until the call closes.

        Raises:
            ModelNotFound: the files of the model were deleted.
            NotReady: the load failed, or the last one did and it is too early for another.
            DeadlineExceeded: a time limit of the call passed. ClientGone: the client has disconnected.
        """
        await self._wait(call, model)
        call.check_open()
        model.running += 1
        self._held.setdefault(call, []).append(model)
        call.on_close(lambda: self._release(call, model))

    async def load(self, model: DeclaredModel) -> None:
        """Load a model, and hold it for no request. Raises NotReady if that fails, or failed a short time ago."""
        await self._wait(None, model)

    async def load_now(self, model: DeclaredModel) -> None:
        """The same as `load`, for the operator: the pause after a failure is not kept."""
        model.retry_at = 0.0
        await self.load(model)

    async def unload(self, model: DeclaredModel) -> None:
        """Unload a model now, for the operator: it leaves when the running requests have ended."""
        if model.state == "loaded":
            await self._leave(model, "operator")

    async def change(self, model: DeclaredModel, changed: Callable[[ModelSpec], ModelSpec]) -> None:
        """Load a model again with another specification, when its running requests have ended.

        changed: returns the new specification, from one that may have further changes which are not in effect yet.
        Raises NotReady if that fails; the model then has its earlier specification again.
        """
        before = model.spec
        if model.state == "loading":
            await self._wait(None, model)
        if model.state in ("loaded", "unloading"):
            model.next_spec = changed(model.next_spec or model.spec)
            await self._leave(model, "operator")
        else:
            model.spec = changed(model.spec)
        try:
            await self.load_now(model)
        except NotReady:
            model.spec, model.retry_at = before, 0.0
            raise

    def keep(self, call: Call, seconds: float | None) -> None:
        """Set the time that the models of a call stay without requests, until they are unloaded. None for no limit."""
        for model in self._held.get(call, ()):
            model.keep(seconds)

    async def _wait(self, call: Call | None, model: DeclaredModel) -> None:
        """Wait until a model can be used.

        Raises NotReady if it cannot be loaded, ModelNotFound if its files are gone, and the errors of `_change`.
        """
        model.waiting += 1
        try:
            while not self._is_usable(model):
                if not model.is_in_memory:
                    if model.is_gone:
                        raise ModelNotFound(f"the files of the model {model.name} were deleted", "model")
                    self._check_failure(model)
                    self._enqueue(model)
                await self._change(call)
        finally:
            model.waiting -= 1
            self._forget_if_gone(model)

    def _is_usable(self, model: DeclaredModel) -> bool:
        return model.state == "loaded" and self._loads.is_available(model.name)

    def _check_failure(self, model: DeclaredModel) -> None:
        """Raise NotReady unless a failed load may be tried again."""
        left = model.retry_at - self._clock()
        if model.state == "failed" and left > 0:
            raise NotReady(f"the model could not be loaded: {model.reason}", retry_after=math.ceil(left))

    def _release(self, call: Call, model: DeclaredModel) -> None:
        self._held.pop(call, None)
        model.running -= 1
        model.used_at = self._clock()
        self._notify()

    def _enqueue(self, model: DeclaredModel) -> None:
        model.state = "loading"
        self._queue.append(model)
        self._notify()

    async def _change(self, call: Call | None) -> None:
        """Wait until any model has changed. The limits of a call end the wait with an error."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(future)
        try:
            if call is None:
                await future
            else:
                await Waiting(future, call, call.limits, "its model was being loaded").result()
        finally:
            self._waiters.discard(future)

    def _notify(self) -> None:
        for future in self._waiters:
            if not future.done():
                future.set_result(None)

    def _report(self) -> None:
        self._events.on_models(self.models.values(), self.budget_bytes or 0)

    def _on_dropped(self, name: str, reason: str) -> None:
        """A worker was started again and could not load a model that it had."""
        model = self.models.get(name)
        if model is not None:
            model.failed(_without_paths(reason, model), self._clock())
            self._drops = [task for task in self._drops if not task.done()]
            self._drops.append(asyncio.ensure_future(self._text.drop(model)))
            self._report()
            self._notify()

    # ----------------------------------------------------------------------------------------------- tasks

    async def _load_queued(self) -> None:
        """Load the queued models, one after the other."""
        while True:
            while not self._queue:
                await self._change(None)
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
                    self._enqueue(model)
            except Exception as error:  # whatever it is, it is the failure of this model
                is_known = isinstance(error, ModelLoadFailed | StartError)
                if not is_known:
                    log.error("a fault while loading %s", model.name, exc_info=error)
                await self._fail(model, str(error) if is_known else f"a fault of the server ({type(error).__name__})")
            seconds = self._clock() - started
            if model.state in ("loaded", "failed"):
                self._events.on_model_load(model.name, model.state, seconds)
            self._forget_if_gone(model)
            self._report()
            self._notify()

    async def _load(self, model: DeclaredModel) -> None:
        """Load one model. Raises ModelLoadFailed. A model that no request waits for any more is not loaded."""
        while not self._loads.is_ready:
            await self._change(None)
        need = await self._loads.measure(model.spec)
        fixed = need.weight_bytes + need.step_bytes
        text_bytes = self._text.size_bytes(model.spec)
        kv_bytes = self._kv_bytes(need)
        size = self._num_workers * (fixed + kv_bytes) + text_bytes
        if not await self._make_room(model, size):
            model.left()
            return
        model.size_bytes = size
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
        log.info("model %s is loaded: %d MiB in %.1f s", model.name, size >> 20, model.load_seconds)

    async def _fail(self, model: DeclaredModel, reason: str) -> None:
        await self._loads.unload(model.name)
        await self._text.drop(model)
        model.failed(_without_paths(reason, model), self._clock())
        log.error("%s; it is tried again after %.0f s", reason, model.retry_at - self._clock())

    def _kv_bytes(self, need: ModelMeasured) -> int:
        """Memory for the KV cache of a model in each worker."""
        limits = [need.kv_bytes]
        if self._kv_cache_bytes is not None:
            limits.append(self._kv_cache_bytes)
        if self.budget_bytes is not None:
            limits.append(self.budget_bytes // KV_SHARE // self._num_workers)
        return max(min(limits), need.min_kv_bytes)

    async def _make_room(self, model: DeclaredModel, size: int) -> bool:
        """Unload models until `size` bytes are free. Returns False if no request waits for the model any more.

        Raises ModelLoadFailed for a model that is larger than the budget.
        """
        budget = self.budget_bytes
        if budget is None:
            return True
        if size > budget:
            raise ModelLoadFailed(
                f"model {model.name!r} needs {size >> 20:,} MiB, and the budget has {budget >> 20:,} MiB (--memory)"
            )
        while self.used_bytes + size > budget:
            if not model.waiting:
                return False
            leaving = who_leaves(self._residents(), self.used_bytes + size - budget)
            assert leaving is not None, "without any model, the budget has room"
            for resident in [self.models[resident.name] for resident in leaving]:
                await self._leave(resident, "room")
        return bool(model.waiting)

    def _residents(self) -> list[Resident]:
        now = self._clock()
        return [
            Resident(
                model.name, model.size_bytes, model.load_seconds, now - model.used_at, model.running + model.waiting > 0
            )
            for model in self.models.values()
            if model.state in ("loaded", "unloading")
        ]

    async def _leave(self, model: DeclaredModel, reason: str) -> None:
        """Unload a model when its running requests have ended. reason: for the log and the metrics."""
        task = self._leaving.get(model.name)
        if task is None:
            model.state = "unloading"
            task = self._leaving[model.name] = asyncio.create_task(self._unload(model, reason), name="unload model")
            task.add_done_callback(lambda done: self._leaving.pop(model.name, None))
        await asyncio.shield(task)

    async def _unload(self, model: DeclaredModel, reason: str) -> None:
        while model.running:
            await self._change(None)
        self._report()
        await self._loads.unload(model.name)
        await self._text.drop(model)
        model.left()
        log.info("model %s is unloaded (%s)", model.name, reason)
        self._events.on_model_unload(model.name, reason)
        self._forget_if_gone(model)
        self._report()
        self._notify()

    async def _sweep(self) -> None:
        """Unload models that have been idle for too long."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self._clock()
            for model in list(self.models.values()):
                expires = model.expires_at
                if expires is not None and expires <= now and not model.running and not model.waiting:
                    await self._leave(model, "idle")


def _without_paths(reason: str, model: DeclaredModel) -> str:
    """Why a load failed, as clients may read it: without paths of this machine."""
    return reason.replace(model.spec.directory, "its directory")
