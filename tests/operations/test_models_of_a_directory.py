"""Models on demand: models that are found in a directory, deleted, moved, or named by their source."""

from __future__ import annotations

import asyncio

import pytest

from server.errors import InvalidRequest, ModelNotFound, NotReady
from server.ipc.wire.descriptions import ModelSpec
from server.operations.model_names import ModelNames
from server.operations.on_demand.declared import DeclaredModel, Description
from server.operations.on_demand.needed import needed_models
from server.text.languages.languages import TranslationLanguages
from tests.operations.on_demand_world import World, eventually


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
