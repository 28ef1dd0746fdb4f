"""NaN values in a request make only this request fail, and do not reach requests that reuse its KV blocks."""

from __future__ import annotations

import pytest
import torch

from tests.engine.harness import generate, run
from tests.ipc.one_row import id_of
from tests.parity.checkpoints import random_ids

NAN_TOKEN = 66
"""Token whose hidden state is NaN in these tests."""


def mixed_requests(pair, poisoned: int) -> list:
    prompts = random_ids(60, [9, 3, 20, 5, 14, 7, 30, 2, 11, 6, 4, 18, 25, 8, 13, 10], seed=4)
    prompts[poisoned] = [*prompts[poisoned][:-1], NAN_TOKEN]
    kinds = [{}, {"do_sample": True}, {"num_beams": 2}]
    # The NaN token is suppressed, so that no other request generates it.
    return [
        generate(pair, i, prompt, seed=i, max_new_tokens=16, suppress_token_ids=[NAN_TOKEN], **kinds[i % 3])
        for i, prompt in enumerate(prompts)
    ]


@pytest.fixture
def poison(monkeypatch):
    """A function that sets the embedding of `NAN_TOKEN` to NaN, so that its keys, values and logits become NaN."""

    def apply(pair):
        transformer = pair.loaded.model.transformer
        stack = transformer.encoder if pair.starts else transformer.decoder
        forward = type(stack.embedding).forward

        def poisoned(self, token_ids, *rest):
            hidden = forward(self, token_ids, *rest)
            if self is stack.embedding:
                hidden = hidden.clone()
                hidden[token_ids == NAN_TOKEN] = torch.nan
            return hidden

        monkeypatch.setattr(type(stack.embedding), "forward", poisoned)
        # Programs from earlier tests contain the original embedding. New programs start after the replaced embedding.
        for executor in transformer._executors.values():
            monkeypatch.setattr(executor, "_programs", {})

    return apply


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bart", "marian"])
@pytest.mark.parametrize("number", [0, 1, 2, 6])
def test_one_poisoned_request_of_sixteen_fails_alone(pairs, poison, name, number):
    pair = pairs(name)
    requests = mixed_requests(pair, number)
    clean = run(pair.engine(), [request for request in requests if id_of(request) != number])
    poison(pair)
    one = pair.engine()
    together = run(one, requests)
    assert {i: end.code for i, end in together.failed.items()} == {number: "engine_error"}
    assert "finite" in together.failed[number].message
    assert set(together.finished) == set(range(16)) - {number}
    for i in together.finished:
        assert together.texts(i) == clean.texts(i)
    # The same engine fails the request several times, and other requests reuse its blocks.
    for _ in range(3):
        again = run(one, requests, every=1)
        assert list(again.failed) == [number]
        assert all(again.texts(i) == clean.texts(i) for i in again.finished)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_blocks_are_cleared_after_an_abort_during_prefill(pairs, poison, name):
    """The blocks of a request that was aborted during prefill are cleared, because its logits were never checked."""
    pair = pairs(name)
    poison(pair)
    one = pair.engine(max_batch_tokens=16, kv_cache_bytes=1 << 16)
    runner = one.models[name].generation.runner
    long = [NAN_TOKEN, *random_ids(60, [60], seed=1)[0]]
    one.add(generate(pair, 0, long, max_new_tokens=3))
    one.step()
    assert not all(torch.isfinite(tensor).all() for tensor in runner.self_cache.keys), "the cache contains no NaN"
    one.abort(0)
    results = run(one, mixed_requests(pair, 15)[:15])
    assert len(results.finished) == 15 and not results.failed
    tensors = (*runner.self_cache.keys, *runner.self_cache.values)
    assert all(torch.isfinite(tensor).all() for tensor in tensors)
