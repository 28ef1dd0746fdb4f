"""Models on demand: idle models give their KV caches to other models, and take them again."""

from __future__ import annotations

import asyncio

import pytest

from server.errors import ClientGone
from tests.operations.on_demand_world import World


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
