"""The declared models of a server: find models by name, and count the requests that hold them.

A request calls `demand` before it uses a model, and holds the model until its call closes. `loader.py` loads and
unloads the models. See docs/decisions/0151-models-on-demand.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from server.errors import InvalidRequest, ModelNotFound, NotReady, StartError
from server.ipc.client.call import Call
from server.ipc.wire.descriptions import ModelSpec
from server.operations.on_demand.declared import DeclaredModel, Description
from server.operations.on_demand.loader import Loads, ModelEvents, OnDemandLoader, TextParts

log = logging.getLogger("triptych.models")


class ModelSources(Protocol):
    """Finds models and adapters that are declared while the server runs.

    discover: returns the models in `--models-dir` by name; None if the directory has not changed, or is not set.
    model: returns the model with a name and a source, which is a path or hub id. Raises InvalidRequest.
    adapter: returns the directory of an adapter with such a source. Raises InvalidRequest.
    """

    async def discover(self) -> Mapping[str, DeclaredModel] | None: ...

    async def model(self, name: str, source: str) -> DeclaredModel: ...

    async def adapter(self, model: DeclaredModel, source: str) -> str: ...


class ModelRegistry:
    """The declared models of a server. All methods must be called on one event loop.

    models: the declared models.
    sources: finds models and adapters that are declared later.
    The other arguments are those of `OnDemandLoader`.
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
        device_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.models: dict[str, DeclaredModel] = {model.name: model for model in models}
        self._text = text
        self._sources = sources
        self._events = events
        self._clock = clock
        self._loader = OnDemandLoader(
            self.models,
            loads,
            text,
            budget_bytes,
            kv_cache_bytes,
            num_workers,
            events,
            clock,
            self._forget_if_gone,
            device_bytes,
        )
        self._discovering = asyncio.Lock()
        self._held: dict[Call, list[DeclaredModel]] = {}

    @property
    def used_bytes(self) -> int:
        """Memory counted for all models together, in bytes: on each CUDA device, or of the machine with a CPU."""
        return self._loader.used_bytes

    def about(self) -> dict[str, Any]:
        """The states of all models, the limit of their memory and its use, as a JSON object for `/info`."""
        now = self._clock()
        models = [model.about(now) for model in self.models.values()]
        return {"memory_bytes": self._loader.budget_bytes, "used_bytes": self.used_bytes, "models": models}

    def start(self) -> None:
        """Start to load and unload models."""
        self._loader.start()

    async def stop(self) -> None:
        """Stop to load and unload models. Loaded models stay loaded."""
        await self._loader.stop()

    def find(self, name: str) -> DeclaredModel | None:
        """The model with a name, or the model of the adapter with this name; None for an unknown name."""
        found = self.models.get(name)
        return found or next((model for model in self.models.values() if name in model.spec.adapters), None)

    async def find_again(self, name: str) -> DeclaredModel | None:
        """The same as `find`, but unless the model is in memory, look for changes in `--models-dir` first."""
        found = self.find(name)
        if found is None or not found.is_in_memory:
            await self.discover()
        return self.find(name)

    async def discover(self) -> None:
        """Declare the new models in `--models-dir`, and remove models whose files were deleted from it."""
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
        """Declare a model from a source that an operator names. source: path or hub id.

        Raises InvalidRequest for a source that cannot be found, and for a name that another model has.
        """
        model = await self._sources.model(name, source)
        found = self.find(name)
        if found is None:
            self.declare(model)
        elif found.spec.directory != model.spec.directory:
            raise InvalidRequest("another model has this name; leave out `source` to load that one", "source")

    async def resolve_adapter(self, model: DeclaredModel, source: str) -> str:
        """Find the directory of an adapter. source: its path or hub id. Raises InvalidRequest if it cannot be found."""
        return await self._sources.adapter(model, source)

    async def descriptions(self) -> list[tuple[DeclaredModel, Description]]:
        """The description of each model. Models whose files cannot be read are left out."""
        found = []
        for model in list(self.models.values()):
            about = await self.description(model)
            if about is not None:
                found.append((model, about))
        return found

    async def description(self, model: DeclaredModel) -> Description | None:
        """The description of a model, loaded or not. None if its files cannot be read."""
        if model.description is None and not model.is_unreadable:
            try:
                model.description = await self._text.describe(model.spec)
            except StartError as error:
                model.is_unreadable = True
                log.warning("%s; requests without `model` do not use it", error)
        return model.description

    def declare(self, model: DeclaredModel) -> None:
        """Add a model. Does nothing if its name, or that of one of its adapters, is in use."""
        if not any(self.find(name) for name in model.names):
            log.info("model %s is declared", model.name)
            self.models[model.name] = model
            self._loader.report()

    def _forget_if_gone(self, model: DeclaredModel) -> None:
        """Remove a model whose files were deleted, unless it is in memory or requests wait for it."""
        if model.is_gone and not (model.is_in_memory or model.waiting) and self.models.get(model.name) is model:
            del self.models[model.name]
            log.info("model %s is not declared any more: its files are gone", model.name)
            self._events.on_model_gone(model.name)
            self._loader.report()

    async def demand(self, call: Call, model: DeclaredModel) -> None:
        """Wait until a model is loaded, and hold it until the call closes.

        The sequences of the call also wait for the model, if its workers die before the sequences are submitted.

        Raises:
            ModelNotFound: the files of the model were deleted.
            NotReady: loading has failed, now or so recently that it is not tried again.
            DeadlineExceeded: a time limit of the call passed.
            ClientGone: the client has disconnected.
        """
        await self._wait(call, model)
        call.check_open()
        model.running += 1
        call.awaits_models = True
        self._held.setdefault(call, []).append(model)
        call.on_close(lambda: self._release(call, model))

    async def load(self, model: DeclaredModel) -> None:
        """Wait until a model is loaded, without holding it. Raises ModelNotFound and NotReady, as `demand` does."""
        await self._wait(None, model)

    async def load_now(self, model: DeclaredModel) -> None:
        """The same as `load`, but without the pause after a failed load. For requests of the operator."""
        model.retry_at = 0.0
        await self.load(model)

    async def unload(self, model: DeclaredModel) -> None:
        """Unload a model as soon as its running requests have ended. Returns when its memory is free.

        Returns at once if the model is in another state, even if it is being loaded or unloaded.
        Used when the operator asks for it; log and metrics show this reason.
        """
        if model.state == "loaded":
            await self._loader.leave(model, "operator")

    async def unload_unused(self, model: DeclaredModel) -> None:
        """Unload a model as soon as no request uses it or waits for it.

        Waits until it is unloaded if that can begin at once; otherwise returns immediately.
        """
        if model.is_in_memory:
            model.keep(0.0)
        if model.state == "loaded" and not (model.running or model.waiting):
            await self._loader.leave(model, "idle")

    async def change(self, model: DeclaredModel, changed: Callable[[ModelSpec], ModelSpec]) -> None:
        """Change the specification of a model, and load it again when its running requests have ended.

        changed: returns the new specification. Its argument may contain earlier changes that are not in effect yet.
        Raises NotReady if loading fails; the model then has its earlier specification again.
        """
        before = model.spec
        if model.state == "loading":
            await self._wait(None, model)
        if model.state in ("loaded", "unloading"):
            model.next_spec = changed(model.next_spec or model.spec)
            await self._loader.leave(model, "operator")
        else:
            model.spec = changed(model.spec)
        try:
            await self.load_now(model)
        except NotReady:
            model.spec, model.retry_at = before, 0.0
            raise

    def keep(self, call: Call, seconds: float | None) -> None:
        """Set the time after which the models of a call are unloaded if they have no requests. None for never."""
        for model in self._held.get(call, ()):
            model.keep(seconds)

    async def _wait(self, call: Call | None, model: DeclaredModel) -> None:
        """Wait until a model can be used, and load it if needed. call: its limits end the wait; None for no limits.

        Raises NotReady if it cannot be loaded, ModelNotFound if its files were deleted, and the errors of
        `Changes.wait`.
        """
        model.waiting += 1
        try:
            while not self._loader.is_usable(model):
                if not model.is_in_memory:
                    if model.is_gone:
                        raise ModelNotFound(f"the files of the model {model.name} were deleted", "model")
                    self._check_failure(model)
                    self._loader.enqueue(model)
                self._loader.take_cache(model)
                await self._loader.changes.wait(call)
        finally:
            model.waiting -= 1
            self._forget_if_gone(model)

    def _check_failure(self, model: DeclaredModel) -> None:
        """Raise NotReady if the last load has failed and it is too early to try again."""
        left = model.retry_at - self._clock()
        if model.state == "failed" and left > 0:
            raise NotReady(f"the model could not be loaded: {model.reason}", retry_after=math.ceil(left))

    def _release(self, call: Call, model: DeclaredModel) -> None:
        self._held.pop(call, None)
        model.running -= 1
        model.used_at = self._clock()
        self._loader.changes.notify()
