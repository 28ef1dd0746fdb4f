"""Loading models while workers run: answers of several workers, lost workers, and vocabularies."""

from __future__ import annotations

import asyncio

import pytest

from server.ipc.client.client import EngineClient
from server.ipc.client.model_loads import ModelLoadFailed
from server.ipc.wire.descriptions import ModelSpec
from server.ipc.wire.generate_messages import Generate, Vocabulary
from server.ipc.wire.message_base import Message
from server.ipc.wire.model_messages import (
    CacheGivenBack,
    GiveBackCache,
    LoadModel,
    MeasureModel,
    ModelFailed,
    ModelLoaded,
    ModelMeasured,
    ModelUnloaded,
    UnloadModel,
)
from tests.ipc.observing import Recorder, submit
from tests.ipc.test_client import DECODER
from tests.ipc.test_lost_workers import Workers

SPEC = ModelSpec("decoder", "/models/decoder", "auto")


class OnDemand(Workers):
    """An engine client with fake workers that start without models. dropped: name and reason of dropped models."""

    def __init__(self, *epochs: int) -> None:
        super().__init__()
        self.client = EngineClient(Recorder(), 1000, 100_000, stale_seconds=3600.0)
        self.dropped: list[tuple[str, str]] = []
        self.client.loads.dropped = lambda name, reason: self.dropped.append((name, reason))
        for epoch in epochs:
            self.ready(epoch)

    def ready(self, epoch: int) -> None:
        self.sent[epoch] = []
        self.client.on_ready([], "cpu", self.sent[epoch].append, epoch)

    def kinds(self, epoch: int) -> list[type[Message]]:
        return [type(message) for message in self.sent[epoch]]

    async def load(self, *epochs: int) -> None:
        loading = asyncio.create_task(self.client.loads.load(SPEC, 1))
        await asyncio.sleep(0)
        for epoch in epochs:
            self.client.on_model(ModelLoaded(epoch, "decoder", [DECODER]))
        await loading


async def test_a_model_is_loaded_when_every_worker_has_it():
    workers = OnDemand(1, 2)
    measuring = asyncio.create_task(workers.client.loads.measure(SPEC))
    await asyncio.sleep(0)
    assert (workers.kinds(1), workers.kinds(2)) == ([MeasureModel], [])
    workers.client.on_model(ModelMeasured(1, "decoder", 10, 1, 2, 3))
    assert (await measuring).weight_bytes == 10
    loading = asyncio.create_task(workers.client.loads.load(SPEC, 7))
    await asyncio.sleep(0)
    assert workers.sent[1][-1] == workers.sent[2][-1] == LoadModel(SPEC, 7)
    workers.client.on_model(ModelLoaded(1, "decoder", [DECODER]))
    await asyncio.sleep(0)
    assert not loading.done()
    workers.client.on_model(ModelLoaded(2, "decoder", [DECODER]))
    await loading
    workers.submit()
    assert Generate in workers.kinds(1) + workers.kinds(2)


async def test_a_load_that_fails_in_one_worker_fails_and_is_undone_in_the_other():
    workers = OnDemand(1, 2)
    loading = asyncio.create_task(workers.client.loads.load(SPEC, 7))
    await asyncio.sleep(0)
    workers.client.on_model(ModelLoaded(1, "decoder", [DECODER]))
    workers.client.on_model(ModelFailed(2, "decoder", "model 'decoder': broken"))
    await asyncio.sleep(0.01)
    assert workers.kinds(1)[-1] is workers.kinds(2)[-1] is UnloadModel
    for epoch in (1, 2):
        workers.client.on_model(ModelUnloaded(epoch, "decoder"))
    with pytest.raises(ModelLoadFailed, match="broken"):
        await loading
    assert not workers.client.loads.is_available("decoder")


async def test_every_worker_gives_back_the_kv_cache_of_a_model_and_keeps_the_model():
    workers = OnDemand(1, 2)
    await workers.load(1, 2)
    giving = asyncio.create_task(workers.client.loads.give_back_cache("decoder"))
    await asyncio.sleep(0)
    assert workers.sent[1][-1] == workers.sent[2][-1] == GiveBackCache("decoder")
    workers.client.on_model(CacheGivenBack(1, "decoder"))
    await asyncio.sleep(0)
    assert not giving.done()
    workers.client.on_lost(2)
    await giving
    assert workers.client.loads.is_available("decoder")
    workers.ready(3)
    assert workers.kinds(3) == [LoadModel]


async def test_an_unload_ends_the_wait_for_a_kv_cache():
    workers = OnDemand(1)
    await workers.load(1)
    giving = asyncio.create_task(workers.client.loads.give_back_cache("decoder"))
    await asyncio.sleep(0)
    unloading = asyncio.create_task(workers.client.loads.unload("decoder"))
    await giving
    workers.client.on_model(CacheGivenBack(1, "decoder"))
    await asyncio.sleep(0.01)
    assert not unloading.done(), "that answer is an earlier one"
    workers.client.on_model(ModelUnloaded(1, "decoder"))
    await unloading


async def test_a_worker_that_ends_while_it_loads_fails_the_model():
    workers = OnDemand(1)
    loading = asyncio.create_task(workers.client.loads.load(SPEC, 7))
    await asyncio.sleep(0)
    workers.client.on_lost(1)
    with pytest.raises(ModelLoadFailed, match="the worker ended while it loaded the model"):
        await loading
    workers.ready(2)
    assert workers.sent[2] == []


async def test_a_new_worker_loads_the_wanted_models_and_gets_their_lost_sequences():
    workers = OnDemand(1)
    await workers.load(1)
    workers.client.add_vocabulary(Vocabulary("decoder", [b"a"]))
    workers.submit()
    workers.client.on_lost(1)
    assert not workers.client.loads.is_available("decoder")
    workers.ready(2)
    assert workers.kinds(2) == [LoadModel]
    workers.client.on_model(ModelLoaded(2, "decoder", [DECODER]))
    assert workers.kinds(2) == [LoadModel, Vocabulary, Generate]


async def test_a_wanted_model_that_fails_or_kills_the_new_worker_is_dropped():
    workers = OnDemand(1)
    await workers.load(1)
    workers.client.on_lost(1)
    workers.ready(2)
    workers.client.on_lost(2)
    await asyncio.sleep(0)
    assert [name for name, _ in workers.dropped] == ["decoder"] and "ended" in workers.dropped[0][1]
    workers.ready(3)
    assert workers.sent[3] == []


async def test_unloading_forgets_the_model_its_vocabulary_and_its_open_requests():
    workers = OnDemand(1)
    await workers.load(1)
    workers.client.add_vocabulary(Vocabulary("decoder", [b"a"]))
    call = submit(workers.client, workers.generate())
    unloading = asyncio.create_task(workers.client.loads.unload("decoder"))
    await asyncio.sleep(0)
    workers.client.on_model(ModelUnloaded(1, "decoder"))
    await unloading
    workers.client.forget_model("decoder", "the model was unloaded")
    assert workers.client.models == {} and call.failure == "not_ready"
    workers.client.add_vocabulary(Vocabulary("decoder", [b"b"]))
    assert workers.kinds(1)[-1] is not Vocabulary, "no worker has the model"
    await workers.load(1)
    assert workers.sent[1][-1] == Vocabulary("decoder", [b"b"])


async def test_an_unload_overtakes_the_load_of_a_new_worker():
    """A model may be unloaded while a new worker still loads it. A late answer to the load is ignored."""
    workers = OnDemand(1)
    await workers.load(1)
    workers.client.on_lost(1)
    workers.ready(2)
    restoring = asyncio.create_task(workers.client.restored(2))
    await asyncio.sleep(0)
    unloading = asyncio.create_task(workers.client.loads.unload("decoder"))
    await asyncio.sleep(0)
    await asyncio.wait_for(restoring, 1)
    workers.client.on_model(ModelLoaded(2, "decoder", [DECODER]))
    await asyncio.sleep(0)
    assert not unloading.done() and not workers.client.loads.is_available("decoder")
    workers.client.on_model(ModelUnloaded(2, "decoder"))
    await unloading
    assert workers.dropped == []


async def test_a_worker_that_becomes_ready_during_a_load_gets_the_model_after_it():
    workers = OnDemand(1)
    loading = asyncio.create_task(workers.client.loads.load(SPEC, 1))
    await asyncio.sleep(0)
    workers.ready(2)
    workers.client.on_model(ModelLoaded(1, "decoder", [DECODER]))
    await loading
    assert workers.kinds(2) == [LoadModel]
