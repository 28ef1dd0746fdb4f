"""Speculative decoding changes no answer: greedy and sampled, alone, batched, in chunks and preempted.

The requests are those of `test_alone_equals_batched`, and the reference is their answers without drafts.
"""

from __future__ import annotations

import pytest

from server.engine.choosing import selection
from server.engine.loading.load import LoadError
from server.engine.scheduling.scheduler import Scheduler
from tests.engine.harness import generate, run
from tests.engine.speculative import accepting_all_drafts, counts, every_prediction, perturbed, speculating
from tests.engine.tiny_checkpoints import HYBRIDS
from tests.invariance.test_alone_equals_batched import (
    NUM_GROWN,
    alone,
    answers,
    answers_to_growing,
    growing_requests,
    mixed_requests,
    pair,
    sizes,
)
from tests.ipc.one_row import id_of
from tests.parity.checkpoints import random_ids

__all__ = ["alone", "every_prediction", "pair"]


WITH_DRAFT_MODELS = ["gpt2", "llama", "mistral", "gemma2", "bloom"]
ACCEPTING = ["gpt2", "llama", "gemma2", "bloom"]
NEVER_DRAFTED = ["glm4-moe", "modernbert-decoder", "stablelm", *HYBRIDS]


def shrink_pool(pair, one) -> Scheduler:
    """Replace the KV pool by one with the size of the largest request. Returns the scheduler."""
    scheduler = one.models[pair.name].generation.scheduler
    size = scheduler.blocks.self_pool.block_size
    needed = max(
        r.params.num_beams * -(-(len(r.rows[0].decoder_token_ids or r.prompts[0]) + r.rows[0].max_new_tokens) // size)
        for r in mixed_requests(pair)
    )
    scheduler.blocks.self_pool = type(scheduler.blocks.self_pool)(needed, size)
    return scheduler


def overflowing_requests(pair, scheduler: Scheduler) -> list:
    """More requests of `growing_requests` than have room in the KV pool at their full length.

    Some are therefore preempted, however long other requests wait for their grammar.
    """
    pool = scheduler.blocks.self_pool
    return growing_requests(pair, pool.num_blocks // pool.blocks_for(NUM_GROWN) + 1)


@sizes("max_batch_tokens, block_size, speculative_tokens, every", (512, 4, 4, 0), (9, 1, 11, 1))
def test_drafts_of_n_grams(pair, alone, max_batch_tokens, block_size, speculative_tokens, every):
    if pair.loaded.keys_depend_on_length:
        with pytest.raises(LoadError):
            speculating(pair)
        return
    settings = {"max_batch_tokens": max_batch_tokens, "block_size": block_size}
    one = speculating(pair, **settings, speculative_tokens=speculative_tokens)
    assert answers(run(one, mixed_requests(pair), every=every)) == alone
    drafted, accepted = counts(one)
    # Some random models never continue a repeated n-gram in the same way; others never repeat any n-gram.
    assert drafted >= accepted and (drafted > 0 or pair.name in NEVER_DRAFTED)
    assert accepted > 0 or pair.name not in ACCEPTING


@pytest.mark.parametrize("pair", WITH_DRAFT_MODELS, indirect=True)
def test_drafts_of_n_grams_alone(pair, alone):
    for request in mixed_requests(pair)[::3]:
        assert answers(run(speculating(pair), [request])) == {id_of(request): alone[id_of(request)]}


def test_drafts_of_n_grams_preempted(pair, alone):
    if pair.loaded.keys_depend_on_length:
        return
    one = speculating(pair, max_batch_tokens=40)
    scheduler = shrink_pool(pair, one)
    # Some random models never repeat n-grams, but the text of the additional request does.
    repeating = generate(pair, 500, mixed_requests(pair)[0].prompts[0][:3], max_new_tokens=12, allowed_token_ids=[7])
    growing = overflowing_requests(pair, scheduler)
    expected = alone | answers(run(pair.engine(), [repeating])) | answers_to_growing(pair, len(growing))
    assert answers(run(one, [*growing, repeating, *mixed_requests(pair)])) == expected
    assert scheduler.num_preemptions > 0 and counts(one)[0] > 0


@pytest.mark.parametrize("pair", WITH_DRAFT_MODELS, indirect=True)
@pytest.mark.parametrize("kind", ["itself", "perturbed"])
@pytest.mark.parametrize("options", [{}, {"max_batch_tokens": 9, "block_size": 1}, {"speculative_tokens": 1}])
def test_drafts_of_a_draft_model(pair, alone, kind, options):
    one = speculating(pair, {"itself": pair.loaded, "perturbed": perturbed(pair.loaded)}[kind], **options)
    assert answers(run(one, mixed_requests(pair), every=1 if options else 0)) == alone
    drafted, accepted = counts(one)
    assert drafted >= accepted > 40
    # Not all drafts are accepted, because drafts may continue after the end of a text.
    assert kind == "perturbed" or accepted > 0.85 * drafted, "drafts of the model itself must be accepted"


@pytest.mark.parametrize("pair", WITH_DRAFT_MODELS, indirect=True)
def test_drafts_of_a_draft_model_preempted(pair, alone):
    one = speculating(pair, perturbed(pair.loaded), max_batch_tokens=40)
    scheduler = shrink_pool(pair, one)
    growing = overflowing_requests(pair, scheduler)
    expected = alone | answers_to_growing(pair, len(growing))
    assert answers(run(one, [*growing, *mixed_requests(pair)])) == expected
    assert scheduler.num_preemptions > 0 and counts(one)[1] > 0


@pytest.mark.parametrize("pair", WITH_DRAFT_MODELS, indirect=True)
def test_accepting_wrong_drafts_is_noticed(pair, alone, monkeypatch):
    """Negative control: if every draft is accepted, the answers differ."""
    monkeypatch.setattr(selection, "choose", accepting_all_drafts(selection.choose))
    assert answers(run(speculating(pair), mixed_requests(pair))) != alone


@pytest.mark.parametrize("pair", WITH_DRAFT_MODELS, indirect=True)
def test_drafts_save_steps_for_repeating_texts(pair):
    prompt = random_ids(97, [5], seed=3)[0] * 4
    request = generate(pair, 0, prompt, max_new_tokens=40, end_token_ids=[], allowed_token_ids=[7])
    plain, guessed = run(pair.engine(), [request]), run(speculating(pair), [request])
    assert guessed.texts(0) == plain.texts(0) and guessed.steps < plain.steps / 3
