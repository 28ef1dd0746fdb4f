"""Beam search in the engine equals transformers' `generate`, token for token and score for score."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import pytest

from tests.engine.harness import as_transformers_settings, generate, reference, run
from tests.engine.tiny_checkpoints import DECODERS, GENERATING, SEQ2SEQ
from tests.parity.checkpoints import random_ids
from tests.rare_families import RARE_IDS, in_turn

PROMPTS = random_ids(97, [1, 5, 11], seed=3)
VARIANTS = {
    "plain": {},
    "two beams": {"num_beams": 2},
    "eight beams": {"num_beams": 8, "num_return_sequences": 8},
    "early": {"early_stopping": True},
    "early, short favoured": {"early_stopping": True, "length_penalty": -1.0},
    "never": {"early_stopping": "never"},
    "never, long favoured": {"early_stopping": "never", "length_penalty": 2.0},
    "never, no penalty": {"early_stopping": "never", "length_penalty": 0.0},
    "long favoured": {"length_penalty": 2.5},
    "short favoured": {"length_penalty": -0.5},
    "no penalty": {"length_penalty": 0.0},
    "all returned": {"num_return_sequences": 4},
    "three returned early": {"num_return_sequences": 3, "early_stopping": True},
    "min new tokens": {"min_new_tokens": 6},
    "no repeated bigrams": {"no_repeat_ngram_size": 2},
    "repetition penalty": {"repetition_penalty": 1.6},
    "bad words": {"bad_words_ids": [[5], [6, 7], [40], [41, 42]]},
    "suppressed": {"suppress_token_ids": [3, 4, 50, 51]},
    "renormalized": {"renormalize_logits": True, "suppress_token_ids": list(range(20, 60)), "repetition_penalty": 1.3},
    "presence rewarded, repetition punished": {"presence_penalty": -0.5, "frequency_penalty": 0.7},
    "biased": {"logit_bias": {7: 2.0, 2: 1.5, 90: -100.0}, "num_return_sequences": 4},
    "allowed": {"allowed_token_ids": [2, *range(30, 50)], "num_return_sequences": 4},
    "no bigram of the source": {"encoder_no_repeat_ngram_size": 2, "logit_bias": {3: 3.0}},
    "forced end": {"forced_eos_token_id": 2},
    "one token": {"max_new_tokens": 1, "num_return_sequences": 4},
    "many ends": {"end_token_ids": [2, 9, 17, 33, 34, 35, 36, 70, 71], "num_return_sequences": 4},
    "many ends early": {"end_token_ids": [2, 9, 17, 33, 34, 35, 36, 70, 71], "early_stopping": True},
    "many ends never": {
        "end_token_ids": [2, 9, 17, 33, 34, 35, 36, 70, 71],
        "early_stopping": "never",
        "length_penalty": 1.5,
        "num_return_sequences": 4,
    },
    "nearly all end": {"end_token_ids": list(range(2, 80)), "num_return_sequences": 4, "early_stopping": "never"},
    "many ends and processors": {
        "end_token_ids": [2, 9, 17, 33, 34, 35],
        "min_new_tokens": 3,
        "no_repeat_ngram_size": 3,
        "length_penalty": 0.6,
        "num_return_sequences": 2,
    },
}


def check(pair, variant, prompts, oracle=None, **more):
    settings = {"num_beams": 4, "max_new_tokens": 12, **variant, **more}
    requests = [generate(pair, i, prompt, **settings) for i, prompt in enumerate(prompts)]
    results = run(pair.engine(), requests)
    for i, prompt in enumerate(prompts):
        texts, scores = reference(oracle or pair, prompt, **as_transformers_settings(pair, prompt, settings))
        assert results.texts(i) == texts
        assert [h.score for h in results.finished[i].hypotheses] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["llama", "marian"])
def test_equals_transformers(pairs, name, variant):
    """The oracle computes in float64, because the error of float32 would be as large as the tolerance."""
    pair = pairs(name)
    check(pair, VARIANTS[variant], PROMPTS, oracle=replace(pair, oracle=copy.deepcopy(pair.oracle).double()))


OTHERS = sorted(GENERATING.keys() - {"llama", "marian"})
# Decoders of common families skip the variant without further settings, because `test_long_texts_cross_many_blocks`
# runs it for every decoder.
FAMILY_CASES = [
    (name, variant)
    for name, variant in in_turn(OTHERS, ["early", "many ends never", "many ends and processors", "plain"])
    if name in SEQ2SEQ or variant != "plain" or RARE_IDS.match(name)
]


@pytest.mark.parametrize("name, variant", FAMILY_CASES)
def test_every_family(pairs, name, variant):
    check(pairs(name), VARIANTS[variant], PROMPTS)


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_forced_first_and_last_token(pairs, name):
    check(pairs(name), {}, PROMPTS, forced_bos_token_id=11, forced_eos_token_id=2, num_return_sequences=4)


@pytest.mark.parametrize("name", DECODERS)
def test_long_texts_cross_many_blocks(pairs, name):
    check(pairs(name), {"max_new_tokens": 40, "num_return_sequences": 4}, random_ids(97, [9, 30], seed=8))


@pytest.mark.parametrize("early, penalty", list(itertools.product([True, False, "never"], [1.0, -1.0])))
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_streamed_tokens_are_a_prefix_of_the_answer(pairs, name, early, penalty):
    pair = pairs(name)
    settings = {
        "num_beams": 4,
        "early_stopping": early,
        "length_penalty": penalty,
        "end_token_ids": [2, 9, 17, 33, 34, 35, 36],
        "stream": True,
        "max_new_tokens": 20,
        "logprobs": True,
        "top_logprobs": 2,
    }
    prompts = random_ids(97, [3, 6, 8, 12, 20, 1], seed=5)
    requests = [generate(pair, i, prompt, **settings) for i, prompt in enumerate(prompts)]
    engine = pair.engine()
    for request in requests:
        engine.add(request)
    streamed: dict[int, list[int]] = {}
    early_pieces = 0
    ends = {}
    while engine.has_work:
        output = engine.step()
        if output is None:
            continue
        for event in output.tokens:
            streamed.setdefault(event.sequence_id, []).extend(event.token_ids)
            assert [entry.token_id for entry in event.logprobs] == event.token_ids
            early_pieces += event.sequence_id not in {end.sequence_id for end in output.finished}
        for end in output.finished:
            ends[end.sequence_id] = end
    for i in range(len(prompts)):
        best = ends[i].hypotheses[0]
        assert streamed[i] == best.token_ids
        assert [entry.token_id for entry in best.logprobs] == best.token_ids
        # No processor changes these log-probabilities, so their sum is the score.
        total = sum(entry.logprob for entry in best.logprobs)
        assert best.score == pytest.approx(total / len(best.token_ids) ** penalty, rel=1e-4)
    assert early_pieces > 0, "no token was streamed before the end"


def test_beam_search_streams_only_if_requested(pairs):
    pair = pairs("gpt2")
    results = run(pair.engine(), [generate(pair, 0, [5, 6], num_beams=3)])
    assert results.tokens == {} and len(results.finished[0].hypotheses) == 1
