"""Models on demand: states, waits, room, failures and idle times, with simulated workers."""

from __future__ import annotations

import asyncio
import random

import pytest

from server.errors import ClientGone, DeadlineExceeded, NotReady
from server.ipc.wire.descriptions import ModelSpec
from server.operations.model_names import ModelNames
from server.operations.on_demand import loader as module
from tests.operations.on_demand_world import World, eventually


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


def test_names_of_models():
    names = ModelNames((("whisper-1", "speech"), ("gpt-*", "llm"), ("*", "rest")), {"embed": "e5"})
    known = {"speech", "llm", "gpt-real", "e5"}
    assert names.resolve("gpt-real", known) == "gpt-real"
    assert [names.resolve(name, known) for name in ("whisper-1", "gpt-4o", "x")] == ["speech", "llm", "rest"]
    assert names.model(None, "embed", known) == names.model("tgi", "embed", known) == "e5"
    assert names.model(None, "generate", known) is None
    assert names.model("tgi", "embed", {"tgi"}) == "tgi"
