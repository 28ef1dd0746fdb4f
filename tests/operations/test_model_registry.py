"""Models on demand: states, waits, room, failures and idle times, with workers that are played by the test."""

from __future__ import annotations

import asyncio
import random

import pytest

from server.errors import ClientGone, DeadlineExceeded, InvalidRequest, ModelNotFound, NotReady, StartError
from server.ipc.client.call import Call
from server.ipc.client.model_loads import ModelLoadFailed, WorkerLost
from server.ipc.wire.descriptions import ModelSpec
from server.ipc.wire.messages import ModelMeasured
from server.operations.model_names import ModelNames
from server.operations.on_demand import loader as module
from server.operations.on_demand.declared import DeclaredModel, Description
from server.operations.on_demand.loader import TextParts
from server.operations.on_demand.needed import needed_models
from server.operations.on_demand.registry import ModelRegistry
from server.operations.on_demand.unloading import Resident, who_leaves, whose_caches
from server.text.languages.languages import TranslationLanguages


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
    """Workers whose models have given sizes. gate: while it is set, loads end; `broken`: names that fail. lost:
    number of workers that end while they load a model. caches: the parts of the sizes that are KV caches."""

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
    """A registry over played workers. Models have the sizes given by name.

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


async def test_a_model_is_loaded_by_its_first_request_and_once_for_many():
    async with World(a=4) as world:
        assert world.state("a") == "declared"
        calls = await asyncio.gather(*(world.use("a") for _ in range(5)))
        assert world.loads.log == ["+a"] and world.state("a") == "loaded"
        assert world.registry.used_bytes == 4 and world.registry.models["a"].running == 5
        for call in calls:
            call.close()
        assert world.registry.models["a"].running == 0


async def test_room_is_made_by_the_model_that_was_used_long_ago():
    async with World(a=4, b=4, c=4) as world:
        for name in ("a", "b"):
            (await world.use(name)).close()
            world.clock.now += 10
        (await world.use("a")).close()
        world.clock.now += 1
        (await world.use("c")).close()
        assert world.loads.log == ["+a", "+b", "-b", "+c"]
        assert world.texts == {"a", "c"} and world.loads.peak <= 10


async def test_the_budget_of_a_device_has_one_copy_of_each_model_and_no_tokenizer(monkeypatch):
    monkeypatch.setattr(World, "text_bytes", 3)
    monkeypatch.setattr(World, "num_workers", 2)
    async with World(a=4, b=4, budget=30) as world:
        (await world.use("a")).close()
        assert world.registry.used_bytes == 11 and world.registry.about()["memory_bytes"] == 30
    async with World(a=4, b=4, c=4, budget=30, device=9) as world:
        for name in "abc":
            (await world.use(name)).close()
        assert world.registry.used_bytes == 8 and world.registry.about()["memory_bytes"] == 9
        assert world.loads.log == ["+a", "+b", "-a", "+c"]


async def test_models_on_a_device_leave_with_their_caches():
    for device, log in ((0, ["+a", "0a", "+b"]), (10, ["+a", "-a", "+b"])):
        async with World(a=6, b=6, device=device) as world:
            world.loads.caches = {"a": 3}
            (await world.use("a")).close()
            (await world.use("b")).close()
            assert world.loads.log == log


async def test_a_model_with_a_running_request_leaves_at_its_end():
    async with World(a=6, b=6) as world:
        running = await world.use("a")
        waiting = asyncio.create_task(world.use("b"))
        await eventually(lambda: world.state("a") == "unloading")
        later = asyncio.create_task(world.use("a"))
        await asyncio.sleep(0.01)
        assert not waiting.done() and not later.done() and world.loads.log == ["+a"]
        running.close()
        (await waiting).close()
        (await later).close()
        assert world.loads.log == ["+a", "-a", "+b", "-b", "+a"]


async def test_requests_for_loaded_models_do_not_wait_for_a_load():
    async with World(a=2, b=2) as world:
        (await world.use("a")).close()
        world.loads.gate.clear()
        waiting = asyncio.create_task(world.use("b"))
        await eventually(lambda: world.state("b") == "loading")
        await world.use("a")
        assert not waiting.done()
        world.loads.gate.set()
        await waiting


async def test_a_failure_is_the_model_s_own_and_is_tried_again_after_a_pause():
    async with World(a=2, b=2) as world:
        world.loads.broken["a"] = "model 'a': a tensor is missing in /models/a"
        for pause in (5, 10, 20):
            with pytest.raises(NotReady, match="a tensor is missing in its directory") as failed:
                await world.use("a")
            assert failed.value.retry_after == pause and world.state("a") == "failed"
            with pytest.raises(NotReady):
                await world.use("a")
            assert world.registry.models["a"].failures == {5: 1, 10: 2, 20: 3}[pause]
            world.clock.now += pause
        await world.use("b")
        del world.loads.broken["a"]
        await world.use("a")
        assert world.registry.models["a"].failures == 0 and world.registry.used_bytes == 4


async def test_text_that_cannot_be_read_fails_the_model_and_frees_the_workers():
    async with World(untold=2) as world:
        with pytest.raises(NotReady, match="no tokenizer"):
            await world.use("untold")
        assert world.loads.present == set() and world.registry.used_bytes == 0


async def test_a_model_larger_than_the_budget_is_refused_with_the_numbers():
    async with World(budget=3 << 20, a=5 << 20) as world:
        with pytest.raises(NotReady, match="needs 5 MiB, and the budget has 3 MiB"):
            await world.use("a")


async def test_a_waiting_request_ends_by_its_limit_or_its_client_and_its_load_is_given_up():
    async with World(a=6, b=6) as world:
        running = await world.use("a")
        with pytest.raises(DeadlineExceeded, match="its model was being loaded"):
            await world.use("b", world.call(queue_seconds=0.02))
        call = world.call()
        waiting = asyncio.create_task(world.use("b", call))
        await asyncio.sleep(0.01)
        call.leave()
        with pytest.raises(ClientGone):
            await waiting
        running.close()
        await eventually(lambda: world.state("a") == "declared")
        await eventually(lambda: world.state("b") == "declared")
        assert "+b" not in world.loads.log


async def test_idle_models_leave_and_keep_alive_has_the_last_word(monkeypatch):
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.005)
    async with World(idle=30, a=1, b=1, c=1) as world:
        (await world.use("a")).close()
        for name, seconds in (("b", None), ("c", 0)):
            call = await world.use(name)
            world.registry.keep(call, seconds)
            call.close()
            world.registry.keep(call, 5)  # it holds no model any more
        await eventually(lambda: world.state("c") == "declared")
        assert world.state("a") == world.state("b") == "loaded"
        world.clock.now += 31
        await eventually(lambda: world.state("a") == "declared")
        assert world.state("b") == "loaded"
        (await world.use("c")).close()
        assert world.registry.models["c"].expires_at == world.clock.now + 30


async def test_an_unused_model_is_unloaded_at_once_and_a_used_one_after_its_last_request(monkeypatch):
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.005)
    async with World(a=1, b=1) as world:
        for name in ("a", "b"):
            await world.registry.unload_unused(world.registry.models[name])
        assert world.loads.log == [], "nothing is loaded only to be unloaded"
        (await world.use("a")).close()
        await world.registry.unload_unused(world.registry.models["a"])
        assert world.state("a") == "declared"
        running, other = await world.use("b"), await world.use("b")
        await world.registry.unload_unused(world.registry.models["b"])
        running.close()
        await asyncio.sleep(0.02)
        assert world.state("b") == "loaded"
        other.close()
        await eventually(lambda: world.state("b") == "declared")
        (await world.use("b")).close()
        assert world.registry.models["b"].expires_at is None, "it stays as before when it is loaded again"


async def test_a_model_that_no_worker_has_is_waited_for_and_a_dropped_one_is_loaded_again():
    async with World(a=1) as world:
        (await world.use("a")).close()
        world.loads.present.clear()
        waiting = asyncio.create_task(world.use("a"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        world.loads.dropped("a", "model 'a': the worker ended while it loaded /models/a")
        with pytest.raises(NotReady, match="the worker ended while it loaded its directory"):
            await waiting
        world.clock.now += 5
        await world.use("a")


async def test_models_are_found_when_an_unknown_name_is_asked_for_and_names_are_not_taken():
    async with World(a=1) as world:
        assert await world.registry.find_again("new") is None
        world.later = [world.model("new"), world.model("a")]
        world.loads.sizes["new"] = 1
        first = world.registry.models["a"]
        assert (await world.registry.find_again("new")).name == "new"
        assert world.registry.models["a"] is first
        await world.use("new")


async def found_in_directory(world: World, *names: str) -> None:
    """Put models into the directory, in place of all others, and read it."""
    world.later = [world.model(name) for name in names]
    for model in world.later:
        model.is_in_directory = True
        world.loads.sizes[model.name] = 4
    await world.registry.discover()


async def test_a_deleted_model_is_forgotten_and_comes_back_with_its_files():
    async with World(a=1) as world:
        await found_in_directory(world, "b", "c")
        models = world.registry.models
        world.loads.broken["c"] = "no such file"
        with pytest.raises(NotReady):
            await world.use("c")
        await found_in_directory(world)
        assert list(models) == ["a"]  # a setting names it
        assert await world.registry.find_again("b") is None
        await found_in_directory(world, "b")
        await world.use("b")


async def test_a_deleted_model_in_memory_stays_until_it_is_unloaded():
    async with World(a=8) as world:
        await found_in_directory(world, "b")
        call = await world.use("b")
        scans = world.scans
        assert await world.registry.find_again("b") is world.registry.models["b"] and world.scans == scans
        await found_in_directory(world)
        more = await world.use("b")
        assert world.state("b") == "loaded" and world.registry.models["b"].is_gone
        making_room = asyncio.create_task(world.use("a"))
        await eventually(lambda: world.state("b") == "unloading")
        waiting = asyncio.create_task(world.use("b"))
        await asyncio.sleep(0)
        call.close()
        more.close()
        with pytest.raises(ModelNotFound, match="the files of the model b were deleted"):
            await waiting
        await making_room
        assert list(world.registry.models) == ["a"] and world.loads.log == ["+b", "-b", "+a"]


async def test_a_model_that_moved_is_declared_again_when_it_has_left():
    async with World() as world:
        await found_in_directory(world, "b")
        (await world.use("b")).close()
        old = world.registry.models["b"]
        moved = DeclaredModel(ModelSpec("b", "/models/b.gguf", "auto"), is_in_directory=True)
        world.later = [moved]
        await world.registry.discover()
        assert world.registry.models["b"] is old
        await world.registry.unload(old)
        await world.registry.discover()
        assert world.registry.models["b"] is moved


async def test_a_deleted_model_is_no_default():
    async with World() as world:
        await found_in_directory(world, "b", "c")
        for model in world.registry.models.values():
            model.description = Description(("embed",), TranslationLanguages(()), False)

        async def needed() -> list[str]:
            return [model.name for model in await needed_models(world.registry, ModelNames(), "off", "embed", object())]

        assert await needed() == ["b"]
        world.later = world.later[1:]
        assert await needed() == ["c"]


async def test_a_model_is_tried_once_more_when_its_worker_ends_and_fails_the_second_time():
    async with World(a=1, b=1) as world:
        world.loads.lost = {"a": 1, "b": 2}
        await world.use("a")
        with pytest.raises(NotReady, match="ended"):
            await world.use("b")
        world.clock.now += 5
        await world.use("b")


async def test_an_operator_loads_and_unloads():
    async with World(a=1) as world:
        model = world.registry.models["a"]
        world.loads.broken["a"] = "broken"
        with pytest.raises(NotReady):
            await world.registry.load_now(model)
        del world.loads.broken["a"]
        await world.registry.load_now(model)
        assert model.state == "loaded"
        await world.registry.unload(model)
        assert model.state == "declared" and world.loads.log[-1] == "-a"


def with_adapter(name: str):
    """A change that adds an adapter."""
    return lambda spec: ModelSpec("a", "/models/a", "auto", adapters={**spec.adapters, name: f"/adapters/{name}"})


async def test_a_changed_model_is_loaded_again_after_its_requests_or_stays_as_it_was():
    async with World(a=1) as world:
        model = world.registry.models["a"]
        call = await world.use("a")
        changed = ModelSpec("a", "/models/a", "auto", adapters={"poems": "/adapters/poems"})
        changing = asyncio.create_task(world.registry.change(model, lambda spec: changed))
        await asyncio.sleep(0.01)
        assert model.spec.adapters == {} and not changing.done()
        call.close()
        await changing
        assert model.spec == changed and world.registry.find("poems") is model
        assert world.loads.log == ["+a", "-a", "+a"]
        world.loads.broken["a"] = "model 'a': adapter 'odes' is broken"
        with pytest.raises(NotReady, match="odes"):
            await world.registry.change(model, with_adapter("odes"))
        del world.loads.broken["a"]
        await world.use("a")
        assert model.spec == changed


async def test_two_changes_at_the_same_time_are_both_made():
    async with World(a=1) as world:
        model = world.registry.models["a"]
        call = await world.use("a")
        changing = [asyncio.create_task(world.registry.change(model, with_adapter(name))) for name in ("odes", "poems")]
        await asyncio.sleep(0.01)
        call.close()
        await asyncio.gather(*changing)
        assert model.spec.adapters == {"odes": "/adapters/odes", "poems": "/adapters/poems"}


async def test_an_idle_model_gives_its_kv_cache_to_another_one_and_takes_it_again():
    async with World(a=4, b=4, c=4) as world:
        world.loads.caches = {"a": 2, "b": 2, "c": 2}
        for name in ("a", "b"):
            (await world.use(name)).close()
            world.clock.now += 10
        (await world.use("c")).close()
        assert world.loads.log == ["+a", "+b", "0a", "+c"]
        about = {model["name"]: model for model in world.registry.about()["models"]}
        assert [about[name]["kv_cache_bytes"] for name in "abc"] == [0, 2, 2]
        assert about["a"]["state"] == "loaded" and about["a"]["memory_bytes"] == 2
        assert world.registry.used_bytes == 10
        world.clock.now += 10
        (await world.use("a")).close()
        assert world.loads.log[4:] == ["0b"], "no model is loaded again"
        assert world.registry.used_bytes == 10 and world.loads.peak == 10


async def test_models_leave_if_the_kv_caches_of_idle_models_are_too_small():
    async with World(a=4, b=4, c=6) as world:
        world.loads.caches = {"a": 1, "b": 1}
        for name in ("a", "b", "c"):
            (await world.use(name)).close()
            world.clock.now += 10
        assert world.loads.log == ["+a", "+b", "-a", "+c"]


async def test_a_model_with_a_request_keeps_its_kv_cache():
    async with World(a=4, b=4, c=4) as world:
        world.loads.caches = {"a": 2, "b": 2, "c": 2}
        running = await world.use("a")
        world.clock.now += 10
        (await world.use("b")).close()
        (await world.use("c")).close()
        assert world.loads.log == ["+a", "+b", "0b", "+c"]
        running.close()


async def test_a_request_waits_until_the_kv_cache_was_given_back_and_taken_again():
    async with World(a=4, b=4, c=4) as world:
        world.loads.caches = {"a": 2, "b": 2, "c": 2}
        for name in ("a", "b"):
            (await world.use(name)).close()
            world.clock.now += 10
        world.loads.gate.clear()
        loading = asyncio.create_task(world.use("c"))
        await asyncio.sleep(0.01)
        waiting = asyncio.create_task(world.use("a"))
        await asyncio.sleep(0.01)
        assert not waiting.done(), "its blocks must not be used while they are given back"
        world.loads.gate.set()
        (await loading).close()
        (await waiting).close()
        assert world.loads.peak <= 10 and world.registry.used_bytes <= 10


async def test_a_model_without_its_kv_cache_waits_for_the_end_of_requests_of_others():
    async with World(a=4, b=4, c=4) as world:
        world.loads.caches = {"a": 2}
        (await world.use("a")).close()
        world.clock.now += 10
        running = [await world.use("b"), await world.use("c")]
        assert world.loads.log == ["+a", "+b", "0a", "+c"]
        call = world.call()
        gone = asyncio.create_task(world.use("a", call))
        waiting = asyncio.create_task(world.use("a"))
        await asyncio.sleep(0.01)
        assert not waiting.done() and world.registry.used_bytes == 10
        call.leave()
        with pytest.raises(ClientGone):
            await gone
        for other in running:
            other.close()
        (await waiting).close()
        assert world.registry.used_bytes <= 10 and world.loads.log.count("+a") == 1


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("seed", range(5))
async def test_random_requests_are_all_served_within_the_budget(seed, caches, monkeypatch):
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.003)
    random_numbers = random.Random(seed)
    sizes = {f"m{index}": random_numbers.randint(1, 5) for index in range(12)}
    async with World(idle=0.5, **sizes) as world:
        if caches:
            world.loads.caches = {name: size // 2 for name, size in sizes.items()}

        async def request(name: str) -> None:
            call = await world.use(name)
            await asyncio.sleep(random_numbers.random() * 0.01)
            world.clock.now += 0.1
            assert name in world.loads.present
            call.close()

        names = [f"m{min(int(random_numbers.paretovariate(1.0)) - 1, 11)}" for _ in range(120)]
        await asyncio.gather(*(request(name) for name in names))
        assert world.loads.peak <= 10 and world.registry.used_bytes <= 10
        assert all(model.running == model.waiting == 0 for model in world.registry.models.values())
        if not caches:
            assert not [entry for entry in world.loads.log if entry.startswith("0")]


def _resident(name: str, size: int, idle: float = 1.0, load: float = 1.0, running: bool = False) -> Resident:
    return Resident(name, size, load, idle, running)


def test_who_leaves():
    old, large, slow = _resident("old", 1, idle=100), _resident("large", 50), _resident("slow", 50, load=50)
    running = _resident("running", 100, idle=1000, running=True)
    assert [one.name for one in who_leaves([large, old, slow, running], 1)] == ["old"]
    assert [one.name for one in who_leaves([large, old, slow, running], 50)] == ["large"], "old is not needed then"
    assert [one.name for one in who_leaves([large, slow, running], 60)] == ["large", "slow"]
    assert [one.name for one in who_leaves([large, old, slow, running], 150)][-1] == "running"
    assert who_leaves([large], 51) is None
    assert who_leaves([], 0) == []


def test_whose_caches():
    old, new = Resident("old", 9, 1.0, 10.0, cache_bytes=2), Resident("new", 9, 1.0, 1.0, cache_bytes=2)
    busy = Resident("busy", 9, 1.0, 100.0, is_running=True, cache_bytes=9)
    encoder = Resident("encoder", 9, 1.0, 100.0)
    assert [one.name for one in whose_caches([new, busy, encoder, old], 1)] == ["old"]
    assert [one.name for one in whose_caches([new, busy, encoder, old], 4)] == ["old", "new"]
    assert whose_caches([new, busy, encoder, old], 5) == [], "then models leave"


def test_names_of_models():
    names = ModelNames((("whisper-1", "speech"), ("gpt-*", "llm"), ("*", "rest")), {"embed": "e5"})
    known = {"speech", "llm", "gpt-real", "e5"}
    assert names.resolve("gpt-real", known) == "gpt-real"
    assert [names.resolve(name, known) for name in ("whisper-1", "gpt-4o", "x")] == ["speech", "llm", "rest"]
    assert names.model(None, "embed", known) == names.model("tgi", "embed", known) == "e5"
    assert names.model(None, "generate", known) is None
    assert names.model("tgi", "embed", {"tgi"}) == "tgi"


async def test_a_source_must_be_that_of_its_name():
    class Sources:
        async def model(self, name: str, source: str) -> DeclaredModel:
            return DeclaredModel(ModelSpec(name, source, "auto"))

    async with World(a=4) as world:
        world.registry._sources = Sources()
        await world.registry.declare_source("a", "/models/a")
        with pytest.raises(InvalidRequest, match="another model has this name"):
            await world.registry.declare_source("a", "/models/b")
        await world.registry.declare_source("b", "/models/b")
        assert world.state("a") == world.state("b") == "declared"
