"""How the memory for KV caches is divided among models, and the report of a pool that is too small for the context."""

from __future__ import annotations

import logging

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from server.engine.loading.kv_memory import AGENT_SLOTS, PoolNeed, agent_bytes, divide_by_need, pool_blocks, pool_need
from server.engine.loading.model_building import build
from server.engine.loading.speculation import agent_shares, kv_shares
from server.engine.process import cpu_memory
from server.engine.process.cpu_memory import default_kv_cache_bytes, warn_of_too_much
from server.ipc.wire.descriptions import EngineOptions, ModelInfo
from server.ipc.wire.fit import room, shortage
from tests.ipc.test_client import DECODER, SEQ2SEQ


@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 5000)), min_size=1, max_size=5),
)
def test_division_satisfies_needs_before_it_gives_more(total: int, pools: list[tuple[int, int]]) -> None:
    needs = [need for need, _ in pools]
    maxima = [need + more for need, more in pools]
    shares = divide_by_need(total, needs, maxima)
    assert sum(shares) <= total
    assert all(share <= most for share, most in zip(shares, maxima, strict=True))
    if sum(needs) <= total:
        assert all(share >= need for share, need in zip(shares, needs, strict=True))
    else:
        assert all(share <= need for share, need in zip(shares, needs, strict=True)), "nobody has more than its need"
        smallest = min(need for need in needs)
        if smallest * len(needs) <= total:
            assert min(shares) >= smallest, "the smallest need is satisfied first"
    assert divide_by_need(10**9, needs, maxima) == maxima


def test_a_large_context_leaves_a_small_model_its_whole_context() -> None:
    assert divide_by_need(1000, [4000, 25], [40_000, 250]) == [975, 25]
    assert divide_by_need(1000, [300, 100], [30_000, 10_000]) == [750, 250], "equally many long sequences"
    assert divide_by_need(1000, [300, 100], [30_000, 120]) == [880, 120]


def test_pools_of_one_model_are_divided_by_need_too() -> None:
    needs = {"self": PoolNeed(10, 40, 400), "cross": PoolNeed(10, 10, 100)}
    assert pool_blocks(needs, 5000) == {"self": 400, "cross": 100}
    assert pool_blocks(needs, 1000) == {"self": 80, "cross": 20}
    assert pool_blocks(needs, 300) == {"self": 20, "cross": 10}


def loaded(pairs, names: list[str], kv_cache_bytes: int) -> dict[str, ModelInfo]:
    options = EngineOptions(block_size=4, max_batch_rows=16, kv_cache_bytes=kv_cache_bytes)
    checkpoints = [pairs(name).loaded for name in names]
    shares = kv_shares(checkpoints, {}, options)
    return {
        name: build(checkpoint, options, share)[1]
        for name, checkpoint, share in zip(names, checkpoints, shares, strict=True)
    }


def test_two_models_run_equally_many_long_sequences(pairs) -> None:
    infos = loaded(pairs, ["gpt2", "marian"], 1 << 20)
    sequences = [info.kv_bytes / info.kv_context_bytes for info in infos.values()]
    assert min(sequences) > 1 and max(sequences) / min(sequences) == pytest.approx(1, rel=0.1)
    assert [shortage(info) for info in infos.values()] == [None, None]


def test_a_pool_too_small_for_the_context_is_told(pairs) -> None:
    whole = loaded(pairs, ["gpt2"], 1 << 20)["gpt2"]
    half = loaded(pairs, ["gpt2"], whole.kv_context_bytes // 2)["gpt2"]
    assert whole.usable_tokens == whole.context_tokens
    assert half.usable_tokens == half.kv_blocks["self"] * half.block_size < half.context_tokens
    text = shortage(half)
    assert text is not None and "--kv-cache-memory" in text
    assert f"{half.usable_tokens} of {half.context_tokens} tokens" in text


def test_the_usable_length_counts_the_default_beams_and_the_source() -> None:
    generation = msgspec.structs.replace(SEQ2SEQ.generation, num_beams=4)
    beams = msgspec.structs.replace(SEQ2SEQ, generation=generation)
    assert (SEQ2SEQ.usable_tokens, beams.usable_tokens, beams.usable_source_tokens) == (128, 32, 32)
    text = shortage(beams)
    assert text is not None and "32 of 512 tokens with 4 beams and 32 of 256 source tokens" in text
    assert shortage(msgspec.structs.replace(DECODER, adapter_of="base")) is None


def test_a_long_conversation_of_each_model_comes_before_full_contexts() -> None:
    needs, maxima, firsts = [4000, 1000], [40_000, 10_000], [1000, 800]
    assert divide_by_need(1800, needs, maxima, firsts) == [1000, 800]
    assert divide_by_need(2400, needs, maxima, firsts) == [1400, 1000], "then the smaller of the other needs"
    assert divide_by_need(10_000, needs, maxima, firsts) == [8000, 2000]
    assert divide_by_need(5000, [100, 100], [900, 900], [700, 100]) == [900, 900], "a first may exceed the need"


def test_the_memory_of_an_agent_gives_each_pool_its_part() -> None:
    attention = PoolNeed(10, 400, 4000, 300)
    for states in (PoolNeed(100, 2, 50, AGENT_SLOTS), PoolNeed(5000, 2, 50, AGENT_SLOTS)):
        blocks = pool_blocks({"self": attention, "state": states}, agent_bytes({"self": attention, "state": states}))
        assert blocks["self"] >= 300 and blocks["state"] >= AGENT_SLOTS
    assert agent_bytes({"self": attention}) == 3000
    assert agent_bytes({"self": PoolNeed(0, 400, 4000, 300), "state": PoolNeed(7, 2, 50, 8)}) == 56, "no attention"


def test_an_agent_needs_no_more_than_the_context(pairs) -> None:
    layers = pairs("llama").loaded.model.transformer.self_attention_layers()
    short, long = (pool_need(layers, torch.bfloat16, 32, length, 1, 4) for length in (1000, 131_072))
    assert (short.agent_blocks, long.agent_blocks, long.blocks) == (32, 1024, 4096)


GIB = 1 << 30


def test_the_default_memory_follows_what_is_free(pairs, monkeypatch, caplog) -> None:
    models = [pairs(name).loaded for name in ("gpt2", "llama")]
    needed = sum(agent_shares(models, {}, EngineOptions()))
    weights = sum(model.model.weight_bytes for model in models)
    monkeypatch.setattr(cpu_memory, "MIN_BYTES", 1000)

    def default(free: int, workers: int = 1, wanted: int = GIB, worker: int = 0) -> int:
        monkeypatch.setattr(cpu_memory, "MIN_WANTED_BYTES", wanted)
        options = EngineOptions(free_memory_bytes=free, num_workers=workers, worker_index=worker)
        caplog.clear()
        return default_kv_cache_bytes(models, {}, options)

    assert default(0) == default(16 * GIB) == GIB, "as much as several short sequences need"
    assert default(16 * GIB, wanted=0) == needed
    assert default(weights + GIB) == GIB // 2 and default(weights + GIB, workers=4) == GIB // 8
    assert not caplog.records
    assert default(weights + needed, wanted=0) == needed // 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "--kv-cache-memory" in record.getMessage()
    assert default(weights + needed, wanted=0, worker=1) == needed // 2 and not caplog.records
    assert default(100) == 1000, "something is possible on a machine without free memory"


def test_more_memory_than_is_free_is_told(pairs, caplog) -> None:
    model = pairs("gpt2").loaded
    info = loaded(pairs, ["gpt2"], 1 << 20)["gpt2"]
    for workers, warnings in ((1, 0), (2, 1)):
        free = model.model.weight_bytes + info.kv_bytes
        options = EngineOptions(free_memory_bytes=free, num_workers=workers)
        warn_of_too_much([model], {}, [info], options)
        assert len(caplog.records) == warnings


def test_the_room_is_told_in_tokens_and_long_sequences() -> None:
    assert room(DECODER) == "room for 128 tokens: 0 sequences of 512"
    long = msgspec.structs.replace(DECODER, context_tokens=131_072, block_size=32, kv_blocks={"self": 2050})
    assert room(long) == "room for 65,600 tokens: 2 sequences of 32,768"
    hybrid = msgspec.structs.replace(long, kv_blocks={"self": 2050, "state": 3})
    assert room(hybrid) == "room for 65,600 tokens: 1 sequence of 32,768", "a sequence needs a state and a snapshot"
    beams = msgspec.structs.replace(SEQ2SEQ.generation, num_beams=4)
    assert msgspec.structs.replace(long, generation=beams).agent_sequences == 0
    assert room(msgspec.structs.replace(long, kv_blocks={}, block_size=0)) is None
    assert room(msgspec.structs.replace(long, adapter_of="base")) is None
