"""Engines with int8 models: their KV pools in bfloat16 have twice as many blocks, and batching changes no token."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from server.engine.loading.load import load
from server.engine.loading.model_building import build
from server.ipc.wire.descriptions import EngineOptions
from tests.engine.harness import generate, run
from tests.engine.speculative import counts, speculating
from tests.ipc.one_row import id_of

PROMPTS = [[5, 6, 7, 8, 9], [11, 3], [20, 21, 22, 23, 24, 25, 26], [30]]


def as_int8(pair):
    spec = msgspec.structs.replace(pair.loaded.spec, quantization="int8")
    return replace(pair, loaded=load(spec, pair.loaded.device, lambda done, total: None))


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_kv_bytes_equals_the_size_of_the_pools(pairs, name):
    blocks, share = {}, 1 << 16
    for pair in (pairs(name), as_int8(pairs(name))):
        engine, info = build(pair.loaded, EngineOptions(block_size=4), share)
        runner = engine.generation.runner
        caches = [cache for cache in (runner.self_cache, runner.cross_cache) if cache is not None]
        tensors = [side for cache in caches for side in cache.tensors]
        assert info.kv_bytes == sum(side.nbytes for side in tensors) <= share
        assert {side.dtype for side in tensors} == {pair.loaded.kv_dtype(EngineOptions())} and info.dtype == "float32"
        blocks[info.quantization] = info.kv_blocks
    assert blocks["int8"] == {pool: 2 * count for pool, count in blocks[None].items()}


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_alone_equals_batched(pairs, name, settings):
    one = as_int8(pairs(name))
    shown = {"attention": True} if name == "marian" else {}
    requests = [generate(one, i, text, max_new_tokens=12, **shown, **settings) for i, text in enumerate(PROMPTS)]
    together = run(one.engine(), requests)
    for request, text in zip(requests, PROMPTS, strict=True):
        number = id_of(request)
        assert run(one.engine(), [request]).texts(number) == together.texts(number)
        for hypothesis in together.finished[number].hypotheses if shown else ():
            attention_matrix = np.frombuffer(hypothesis.attention, "<f4").reshape(-1, len(text))
            np.testing.assert_allclose(attention_matrix.sum(1), 1.0, atol=1e-5)


def test_drafts_of_an_int8_draft_model(pairs):
    """An int8 model accepts all drafts of itself, and most drafts of the same model in float32."""
    one = as_int8(pairs("gpt2"))
    wanted = run(one.engine(), [generate(one, 0, PROMPTS[0], max_new_tokens=21, end_token_ids=[])]).texts(0)
    for draft in (one.loaded, pairs("gpt2").loaded):
        engine = speculating(one, draft)
        assert run(engine, [generate(one, 0, PROMPTS[0], max_new_tokens=21, end_token_ids=[])]).texts(0) == wanted
        proposed, right = counts(engine)
        assert proposed and (right == proposed if draft is one.loaded else right > proposed // 2)
