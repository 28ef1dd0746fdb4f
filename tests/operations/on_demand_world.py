"""A model registry with simulated workers and a clock, for the tests of models on demand."""

from __future__ import annotations

import asyncio

from server.errors import StartError
from server.ipc.client.call import Call
from server.ipc.client.model_loads import ModelLoadFailed, WorkerLost
from server.ipc.wire.descriptions import ModelSpec
from server.ipc.wire.model_messages import ModelMeasured
from server.operations.on_demand.declared import DeclaredModel
from server.operations.on_demand.loader import TextParts
from server.operations.on_demand.registry import ModelRegistry


async def eventually(condition) -> None:
    """Let the tasks run until a condition is true."""
    while not condition():
        await asyncio.sleep(0.002)


class FakeClient:
    """A client without sequences."""

    def withdraw(self, call: Call) -> None: ...

    def abort_all(self, sequence_ids) -> None: ...

    def cancelled(self, sequence_ids) -> None: ...


class FakeLoads:
    """Simulated workers, without processes.

    sizes: memory of each model. caches: the part of it that is KV cache.
    gate: loads end only while it is set.
    broken: models that cannot be loaded, with the reasons. lost: how often the worker ends while it loads a model.
    present: models that are loaded. empty: models whose KV caches are given back.
    log: `+name` for a load, `-name` for an unload, `0name` for a cache that is given back.
    peak: most memory at one time.
    """

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.caches: dict[str, int] = {}
        self.empty: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken: dict[str, str] = {}
        self.lost: dict[str, int] = {}
        self.present: set[str] = set()
        self.log: list[str] = []
        self.peak = 0
        self.is_ready = True
        self.changed = lambda: None
        self.dropped = lambda name, reason: None

    def is_available(self, name: str) -> bool:
        return name in self.present

    async def measure(self, spec: ModelSpec) -> ModelMeasured:
        await asyncio.sleep(0)
        cache = self.caches.get(spec.name, 0)
        return ModelMeasured(1, spec.name, self.sizes[spec.name] - cache - 1, cache, cache, 1)

    async def load(self, spec: ModelSpec, kv_cache_bytes: int) -> None:
        await self.gate.wait()
        await asyncio.sleep(0)
        if self.lost.get(spec.name, 0):
            self.lost[spec.name] -= 1
            raise WorkerLost(f"model {spec.name!r}: the worker ended while it loaded the model")
        if spec.name in self.broken:
            raise ModelLoadFailed(self.broken[spec.name])
        self.present.add(spec.name)
        self.empty.discard(spec.name)
        self.log.append(f"+{spec.name}")
        self.count()

    def count(self) -> None:
        """Count the memory of all models now."""
        empty = sum(self.caches.get(name, 0) for name in self.empty & self.present)
        self.peak = max(self.peak, sum(self.sizes[name] for name in self.present) - empty)

    async def give_back_cache(self, name: str) -> None:
        await self.gate.wait()
        await asyncio.sleep(0)
        self.empty.add(name)
        self.log.append(f"0{name}")

    async def unload(self, name: str) -> None:
        await asyncio.sleep(0)
        if name in self.present:
            self.present.discard(name)
            self.log.append(f"-{name}")


class Events:
    def on_models(self, models, budget_bytes) -> None: ...

    def on_model_load(self, name, outcome, seconds) -> None: ...

    def on_model_unload(self, name, reason) -> None: ...

    def on_model_gone(self, name) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A model registry with simulated workers. sizes: memory of each model, by name.

    device: memory for models on each CUDA device; 0 for a CPU.
    """

    text_bytes, num_workers = 0, 1

    def __init__(self, budget: int | None = 10, idle: float | None = None, device: int = 0, **sizes: int) -> None:
        self.loads = FakeLoads(sizes)
        self.clock = Clock()
        self.later: list[DeclaredModel] = []
        self.scans = 0
        self.texts: set[str] = set()

        async def load(spec):
            if spec.name == "untold":
                raise StartError("untold: no tokenizer")
            self.texts.add(spec.name)

        async def drop(model):
            self.texts.discard(model.name)

        async def describe(spec):
            raise StartError("no description")

        text = TextParts(lambda spec: self.text_bytes, load, drop, describe)
        models = [self.model(name, idle) for name in sizes]
        self.registry = ModelRegistry(
            models, self.loads, text, self, budget, None, self.num_workers, Events(), self.clock, lambda: device
        )
        self.registry.start()

    async def discover(self) -> dict[str, DeclaredModel]:
        self.scans += 1
        await asyncio.sleep(0)
        return {model.name: model for model in self.later}

    def model(self, name: str, idle: float | None = None) -> DeclaredModel:
        return DeclaredModel(ModelSpec(name, f"/models/{name}", "auto"), idle, used_at=self.clock.now)

    def call(self, queue_seconds: float | None = None) -> Call:
        return Call(FakeClient(), queue_seconds=queue_seconds)

    async def use(self, name: str, call: Call | None = None) -> Call:
        call = call or self.call()
        await self.registry.demand(call, self.registry.models[name])
        assert name in self.loads.present and name in self.texts
        self.loads.empty.discard(name)  # its requests write the cache
        self.loads.count()
        return call

    def state(self, name: str) -> str:
        return self.registry.models[name].state

    async def __aenter__(self) -> World:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.registry.stop()
