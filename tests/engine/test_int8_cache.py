"""Engines with an int8 KV cache: memory, refusals, and texts that do not depend on batches, chunks or preemption."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch

from models.config import AttentionConfig
from server.engine.loading.load import LoadError
from server.engine.loading.model_building import build, check_cache
from server.engine.loading.speculation import make_drafter
from server.ipc.wire.descriptions import EngineOptions, Speculation
from tests.engine.harness import run
from tests.engine.speculative import counts, speculating
from tests.invariance.test_alone_equals_batched import answers, mixed_requests
from tests.invariance.test_speculation import overflowing_requests, shrink_pool
from tests.ipc.one_row import id_of

INT8 = {"kv_cache_dtype": "int8"}


@pytest.mark.parametrize("name", ["gpt2", "llama", "marian"])
def test_texts_do_not_depend_on_the_batch(pairs, name):
    """A request has the same text alone, together with others, in chunks, cached, preempted and with drafts.

    Requests are sampled, with beams, and with grammars.
    """
    pair = pairs(name)
    requests = mixed_requests(pair)
    together = answers(run(pair.engine(**INT8), requests))
    for request in requests[::3]:
        assert run(pair.engine(**INT8), [request]).texts(id_of(request)) == together[id_of(request)]
    one = pair.engine(**INT8, max_batch_tokens=5)
    assert answers(run(one, requests, every=1)) == together
    assert answers(run(one, requests)) == together, "with blocks that the prefix cache holds"
    one = pair.engine(**INT8)
    scheduler = shrink_pool(pair, one)
    growing = overflowing_requests(pair, scheduler)
    expected = together | answers(run(pair.engine(**INT8), growing))
    assert answers(run(one, [*growing, *requests])) == expected and scheduler.num_preemptions > 0
    one = speculating(pair, **INT8)
    assert answers(run(one, requests)) == together and counts(one)[0] > 0


def test_the_pools_hold_more_tokens_in_the_same_memory(pairs):
    pair, share = pairs("marian"), 1 << 16
    blocks = {}
    for dtype in ("auto", "int8"):
        engine, info = build(pair.loaded, EngineOptions(block_size=4, kv_cache_dtype=dtype), share)
        runner = engine.generation.runner
        tensors = [tensor for cache in (runner.self_cache, runner.cross_cache) for tensor in cache.tensors]
        assert info.kv_bytes == sum(tensor.nbytes for tensor in tensors) <= share and info.kv_cache_dtype == dtype
        blocks[dtype] = info.kv_blocks
    heads = pair.loaded.model.transformer.self_attention_layers()
    ratio = 4 * heads[0].head_dim / (heads[0].head_dim + 2)
    assert blocks["int8"]["self"] == pytest.approx(ratio * blocks["auto"]["self"], rel=0.1)


def test_the_setting_of_a_model_goes_before_that_of_all(pairs):
    loaded = pairs("gpt2").loaded
    own = replace(loaded, spec=msgspec.structs.replace(loaded.spec, kv_cache_dtype="auto"))
    assert own.kv_dtype(EngineOptions(kv_cache_dtype="int8")) == torch.float32
    assert loaded.kv_dtype(EngineOptions(kv_cache_dtype="int8")) == torch.int8
    assert build(pairs("bert").loaded, EngineOptions(kv_cache_dtype="int8"), 1 << 20)[1].kv_cache_dtype == "auto"


def test_refusals(pairs, monkeypatch):
    options = EngineOptions(kv_cache_dtype="int8")
    bert = pairs("bert").loaded
    named = replace(bert, spec=msgspec.structs.replace(bert.spec, kv_cache_dtype="int8"))
    with pytest.raises(LoadError, match="'bert' has no KV cache"):
        build(named, EngineOptions(), 1 << 20)
    gpt2 = pairs("gpt2").loaded
    wide = (AttentionConfig(num_heads=1, num_kv_heads=1, head_dim=2048, scale=1.0, causal=True),)
    with monkeypatch.context() as patch:
        patch.setattr(type(gpt2.model.transformer), "self_attention_layers", lambda self: wide)
        with pytest.raises(LoadError, match="at most 1,024 numbers; its heads have 2,048"):
            build(gpt2, options, 1 << 20)
    cuda = replace(gpt2, device=torch.device("cuda"))
    with pytest.raises(LoadError, match=r"--kv-cache-dtype int8 needs a CPU.*the model runs on cuda"):
        check_cache(cuda, options)
    with pytest.raises(LoadError, match=r"'gpt2': --kv-cache-dtype fp8 needs a CUDA device"):
        build(gpt2, EngineOptions(kv_cache_dtype="fp8"), 1 << 20)
    target = replace(gpt2, spec=msgspec.structs.replace(gpt2.spec, speculation=Speculation(draft_directory="there")))
    with pytest.raises(LoadError, match="the model runs on cuda"):
        make_drafter(target, cuda, options, 1 << 20)
