"""Rotary embeddings that depend on the text length: generated texts equal transformers.

Texts are shorter or longer than the original context length, equal to it, or cross it while they grow. Chunks and
preemption do not change the results.
"""

from __future__ import annotations

import pytest
import torch

from server.engine.scheduling.scheduler import Scheduler
from tests.engine.harness import generate, reference, run
from tests.parity.checkpoints import random_ids

ORIGINAL = 24
GROWING = ["llama-dynamic", "llama-long", "phi3-long"]
LENGTHS = [3, ORIGINAL - 4, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, 2 * ORIGINAL]
PROMPTS = random_ids(97, LENGTHS, seed=5)
SETTINGS = {"max_new_tokens": 30, "min_new_tokens": 30}


def expected(pair, **settings):
    return [reference(pair, prompt, **SETTINGS, **settings)[0] for prompt in PROMPTS]


def found(pair, engine, **settings):
    requests = [generate(pair, i, prompt, **SETTINGS, **settings) for i, prompt in enumerate(PROMPTS)]
    results = run(engine, requests)
    assert not results.failed
    return [results.texts(i) for i in range(len(PROMPTS))]


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize("settings", [{}, {"num_beams": 4}], ids=["greedy", "beams"])
@pytest.mark.parametrize("max_batch_tokens", [512, 7])
def test_texts_equal_transformers(pairs, name, settings, max_batch_tokens):
    pair = pairs(name)
    answers = found(pair, pair.engine(max_batch_tokens=max_batch_tokens), **settings)
    assert answers == expected(pair, **settings)
    assert all(len(text) == 30 for texts in answers for text in texts)


@pytest.mark.parametrize("name", GROWING)
def test_preempted_texts_equal_transformers(pairs, name):
    pair = pairs(name)
    engine = pair.engine()
    scheduler: Scheduler = engine.models[name].generation.scheduler
    scheduler.blocks.self_pool = type(scheduler.blocks.self_pool)(-(-(LENGTHS[-1] + 30) // 4), 4)
    assert found(pair, engine) == expected(pair)
    assert scheduler.num_preemptions > 0, "the pool is too large to cause a preemption"


@pytest.mark.parametrize("name", GROWING)
def test_a_wrong_length_is_noticed(pairs, name, monkeypatch):
    """Negative control: if the rotary embedding of a chunk uses the chunk's end as text length, results differ."""
    pair = pairs(name)
    model = pair.loaded.model.transformer
    decode = type(model).decode

    def by_step(self, batch, *caches):
        reach = torch.tensor(batch.key_lens).repeat_interleave(torch.tensor(batch.query_lens))
        object.__setattr__(batch, "rope_lengths", reach)
        return decode(self, batch, *caches)

    monkeypatch.setattr(type(model), "decode", by_step)
    monkeypatch.setattr(Scheduler, "restart", lambda self, request: None)
    assert found(pair, pair.engine(max_batch_tokens=7)) != expected(pair)


def test_phi_3_without_its_restart_is_noticed(pairs, monkeypatch):
    """Negative control: if Phi-3 does not compute a text again at the original length, results differ.

    The cache then contains keys that were computed with the short factors.
    """
    pair = pairs("phi3-long")
    monkeypatch.setattr(Scheduler, "restart", lambda self, request: None)
    answers, theirs = found(pair, pair.engine()), expected(pair)
    crossing = [length <= ORIGINAL for length in LENGTHS]
    assert [answer != other for answer, other in zip(answers, theirs, strict=True)] == crossing


def test_the_context_is_the_extended_length(pairs):
    assert [pairs(name).loaded.context_tokens for name in GROWING] == [4 * ORIGINAL, 128, 128]


@pytest.mark.parametrize("name", GROWING)
def test_the_next_turn_finds_the_keys_of_its_own_side_of_the_original_length(pairs, name):
    """The prefix cache gives right answers in a conversation that crosses the original context length.

    Keys before and after this length differ, so that some cached keys cannot be used.
    """
    pair, text = pairs(name), random_ids(97, [70], seed=8)[0]
    lengths = [9, 18, ORIGINAL, ORIGINAL + 5, ORIGINAL + 15, ORIGINAL + 15]
    messages = [
        generate(pair, i, text[:length], max_new_tokens=12, min_new_tokens=12) for i, length in enumerate(lengths)
    ]
    engine = pair.engine()
    cached = []
    for number, message in enumerate(messages):
        results = run(engine, [message])
        cached.append(results.finished[number].cached_tokens)
        assert results.texts(number) == run(pair.engine(prefix_cache=False), [message]).texts(number)
    # The third answer crosses the original length. Phi-3 then computes the whole text again.
    crossed = ORIGINAL if name == "phi3-long" else 0
    shared = 0 if name == "llama-dynamic" else ORIGINAL + 4
    assert cached == [0, 8, 16, crossed, shared, ORIGINAL + 12]
