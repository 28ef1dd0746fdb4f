"""Engines with host memory for their prefix cache: exact copies, the same answers, checksums, refusals.

The tests need no device: tensors of the CPU represent both device memory and host memory.
"""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

from models.steps.kv_cache import KVCache
from server.engine.cache.host_pool import CopyFailed
from server.engine.device import host_blocks
from server.engine.device.host_blocks import HostBlocks
from server.engine.loading.host_memory import warn_without_host_pool
from server.engine.loading.load import LoadError
from server.engine.loading.model_building import build
from server.engine.process import service
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.stats_sum import with_others, without_increments
from server.ipc.wire.step_messages import Stats
from server.ipc.wire.worker_messages import Configure
from tests.engine.harness import generate, run
from tests.engine.speculative import speculating
from tests.parity.checkpoints import random_ids

CPU = torch.device("cpu")
PROMPTS = random_ids(97, [41, 38, 45, 52], seed=7)


def small(pair, **more) -> dict[str, object]:
    """Options of an engine whose KV cache has room for one or two of the texts. Host memory has room for all."""
    need = pair.loaded.pool_needs(EngineOptions(block_size=4, **more))["self"]
    return {"kv_cache_bytes": 32 * need.block_bytes, "kv_spill_bytes": 1 << 20, **more}


def cache_of(pairs, name: str, dtype: torch.dtype) -> KVCache:
    layers = pairs(name).loaded.model.transformer.self_attention_layers()
    cache = KVCache(layers, 12, 5, dtype, CPU)
    generator = torch.Generator().manual_seed(0)
    for tensor in cache.tensors:
        raw = torch.randint(0, 256, (tensor.nbytes,), generator=generator, dtype=torch.uint8)
        tensor.view(-1).view(torch.uint8).copy_(raw)
    return cache


def bits(cache: KVCache, block: int) -> list[list[int]]:
    return [tensor[block].flatten().view(torch.uint8).tolist() for tensor in cache.tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("staging", [1, host_blocks.STAGING_BYTES])
def test_blocks_come_back_bit_by_bit(pairs, monkeypatch, dtype, staging):
    """Blocks that are copied to host memory and back have the same bits.

    The values are random bits, so they include NaN. A block of 5 tokens is not always a whole number of 8-byte words.
    """
    monkeypatch.setattr(host_blocks, "STAGING_BYTES", staging)
    cache = cache_of(pairs, "llama", dtype)
    before = {block: bits(cache, block) for block in range(12)}
    host = HostBlocks(cache, 6)
    host.to_host([3, 0, 7], [5, 1, 2])
    cache.clear([0, 3, 7])
    assert host.to_device([2, 5, 1], [8, 9, 10]) == [True, True, True]
    found = {block: bits(cache, block) for block in range(12)}
    assert [found[8], found[9], found[10]] == [before[7], before[3], before[0]]
    assert all(found[block] == before[block] for block in (1, 2, 4, 5, 6, 11))


def test_each_changed_word_changes_the_checksum(pairs):
    cache = cache_of(pairs, "gpt2", torch.float32)
    host = HostBlocks(cache, 2)
    host.to_host([4, 5], [0, 1])
    for word in range(host._memory.shape[1]):
        for bit in (0, 31, 63):
            changed = 1 << bit if bit < 63 else -(1 << 63)
            host._memory[0, word] ^= changed
            assert host.to_device([0, 1], [6, 7]) == [False, True]
            host._memory[0, word] ^= changed
    host._memory[0, :2] = host._memory[0, :2].flip(0)
    assert host.to_device([0], [6]) == [False], "two words have changed places"


def test_an_out_of_memory_error_of_the_device_is_no_error_of_a_step(pairs, monkeypatch):
    pair = pairs("gpt2")
    expected = run_all(pair.engine(**small(pair)), requests(pair), 30)
    engine = pair.engine(**small(pair))

    def fail(self, numbers):
        raise torch.OutOfMemoryError("CUDA out of memory")

    index = HostBlocks._index
    monkeypatch.setattr(HostBlocks, "_index", fail)
    with pytest.raises(CopyFailed, match="CUDA out of memory"):
        engine.models["gpt2"].generation.scheduler.blocks.host._copies.to_host([0], [0])
    assert run_all(engine, requests(pair), 30) == expected and stats_of(engine)["spilled"] == 0
    monkeypatch.setattr(HostBlocks, "_index", index)
    assert run_all(engine, requests(pair), 30) == expected and stats_of(engine)["restored"] > 0


def requests(pair):
    """Requests for each text: greedy, sampled and with beams, all of these twice, and once with another salt."""
    kinds = [{}, {"do_sample": True, "temperature": 0.8, "seed": 5}, {"num_beams": 2}]
    made = [
        generate(pair, 100 * turn + 10 * kind + place, prompt, max_new_tokens=10, **settings)
        for turn in range(2)
        for kind, settings in enumerate(kinds)
        for place, prompt in enumerate(PROMPTS)
    ]
    return [*made, *(generate(pair, 300 + place, prompt, cache_salt="b") for place, prompt in enumerate(PROMPTS))]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("more", [{}, {"kv_cache_dtype": "int8"}, {"max_batch_tokens": 7}])
def test_answers_are_the_same_with_host_memory(pairs, name, more):
    """Answers are the same with a large KV pool, with a small one, and with a small one and host memory.

    The requests run one after the other, and together.
    """
    pair = pairs(name)
    exact = {key: value for key, value in more.items() if key == "kv_cache_dtype"}
    expected = {}
    for request in requests(pair):
        (row,) = request.rows
        expected[row.sequence_id] = run(pair.engine(**exact), [request]).texts(row.sequence_id)
    for every in (0, 3, 30):
        engine = pair.engine(**small(pair, **more))
        assert run_all(engine, requests(pair), every) == expected
        counted = stats_of(engine)
        assert counted["restored"] > 10 and counted["damaged"] == 0, counted
        without = pair.engine(**(small(pair, **more) | {"kv_spill_bytes": 0}))
        assert run_all(without, requests(pair), every) == expected and without.stats().host_blocks == {}


def run_all(engine, messages, every):
    results = run(engine, messages, every)
    assert not results.failed
    return {row.sequence_id: results.texts(row.sequence_id) for message in messages for row in message.rows}


def stats_of(engine) -> dict[str, int]:
    host = engine.models[next(iter(engine.models))].generation.scheduler.blocks.host
    return {"spilled": host.num_spilled, "restored": host.num_restored, "damaged": host.num_damaged}


def test_damaged_copies_change_no_answer(pairs):
    pair = pairs("llama")
    expected = run_all(pair.engine(**small(pair)), requests(pair), 30)
    engine = pair.engine(**small(pair))
    host = engine.models["llama"].generation.scheduler.blocks.host
    honest = host._copies.to_host

    def damaging(blocks, slots):
        honest(blocks, slots)
        host._copies._memory[slots[0]].view(torch.float32).fill_(torch.nan)

    host._copies.to_host = damaging
    assert run_all(engine, requests(pair), 30) == expected
    assert stats_of(engine)["damaged"] > 0 and stats_of(engine)["restored"] > 0
    # Negative control: if checksums are not compared, the damaged keys and values change the answers.
    engine = pair.engine(**small(pair))
    host = engine.models["llama"].generation.scheduler.blocks.host
    honest, read = host._copies.to_host, host._copies.to_device
    host._copies.to_host = damaging
    host._copies.to_device = lambda slots, blocks: [True] * len(read(slots, blocks))
    assert run(engine, requests(pair), 30).failed


def test_drafts_and_host_memory(pairs):
    pair = pairs("gpt2")
    expected = run_all(pair.engine(), requests(pair), 30)
    engine = speculating(pair, **small(pair))
    assert run_all(engine, requests(pair), 30) == expected and stats_of(engine)["restored"] > 0


def test_statistics(pairs):
    pair = pairs("gpt2")
    engine = pair.engine(**small(pair))
    before = engine.stats()
    assert before.host_blocks == {"spilled": 0, "restored": 0, "damaged": 0} and before.host_bytes["used"] == 0
    for message in requests(pair):
        engine.add(message)
    while engine.has_work:
        engine.step()
    stats = engine.stats()
    assert stats.host_blocks == stats_of(engine) and stats.host_blocks["spilled"] > 0
    assert 0 < stats.host_bytes["used"] <= stats.host_bytes["total"] <= 1 << 20
    assert engine.stats().host_blocks == {"spilled": 0, "restored": 0, "damaged": 0}, "counts since the last message"


def test_statistics_of_several_workers():
    one, other = (
        Stats(epoch, 0, 0, 0, {}, {}, {}, host_blocks={"spilled": 5}, host_bytes={"used": 10 * epoch})
        for epoch in (1, 2)
    )
    both = with_others(one, [other])
    assert both.host_bytes == {"used": 30} and both.host_blocks == {"spilled": 5}
    assert without_increments(one).host_blocks == {} and without_increments(one).host_bytes == {"used": 10}


def test_models_without_a_prefix_cache_have_no_host_memory(pairs, caplog):
    for name, more in (("marian", {}), ("gpt2", {"prefix_cache": False}), ("lfm2", {}), ("bert", {}), ("llama", {})):
        engine = pairs(name).engine(kv_spill_bytes=1 << 20, **more)
        generation = engine.models[name].generation
        assert generation is None or (generation.scheduler.blocks.host is None) == (name != "llama")
        warn_without_host_pool(engine.models.values(), EngineOptions(kv_spill_bytes=1 << 20))
        warn_without_host_pool(engine.models.values(), EngineOptions())
    told = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0].split()[-1] for line in told] == ["marian", "gpt2", "lfm2"], told


def test_refusals(pairs):
    options = EngineOptions(block_size=4, kv_cache_bytes=1 << 20, kv_spill_bytes=100)
    with pytest.raises(LoadError, match=r"model 'gpt2': its share of --kv-spill-memory \(100 bytes\) is less than one"):
        build(pairs("gpt2").loaded, options, 1 << 20)
    spec = ModelSpec("m", pairs("gpt2").loaded.spec.directory, "float32")
    with pytest.raises(LoadError, match="--kv-spill-memory needs a CUDA device: on a CPU, the KV cache is in host mem"):
        service.start(Configure(0, "cpu", [spec], EngineOptions(kv_spill_bytes=1 << 20)), lambda progress: None)


class FakeRuntime:
    """Fake functions of the CUDA runtime that lock (pin) host memory."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if not self.status:
            self.locked[address] = size
        return self.status

    def cudaHostUnregister(self, address: int) -> None:
        del self.locked[address]


def test_memory_is_locked_until_it_is_dropped(pairs, monkeypatch):
    runtime = FakeRuntime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    cache = cache_of(pairs, "gpt2", torch.float32)
    lock = host_blocks.lock_pages
    cuda = SimpleNamespace(type="cuda")
    monkeypatch.setattr(host_blocks, "lock_pages", lambda tensor, owner, device: lock(tensor, owner, cuda))
    host = HostBlocks(cache, 3)
    assert runtime.locked == {host._memory.data_ptr(): 3 * host.block_bytes}
    del host
    gc.collect()
    assert not runtime.locked
    runtime.status = 2
    options = EngineOptions(block_size=4, kv_cache_bytes=1 << 20, kv_spill_bytes=1 << 20)
    with pytest.raises(LoadError, match=r"cannot allocate and lock 1,0.* bytes of host memory; use a smaller"):
        build(pairs("gpt2").loaded, options, 1 << 20)
