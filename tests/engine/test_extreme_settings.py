"""Sampling fields at the limits of their ranges do not stop the engine, in steps with ordinary requests.

Requests for a base model and for adapters, with drafts, are mixed. The limits are those of the request schema.
"""

from __future__ import annotations

import random

import pytest

from server.ipc.wire.generate_messages import Generate
from tests.engine.harness import generate, run
from tests.engine.speculative import every_prediction, speculating  # noqa: F401 (a fixture)
from tests.engine.test_adapters import BASE, NAMES, PROMPTS, Family
from tests.engine.tiny_checkpoints import VOCAB

TINY = 5e-324
"""The smallest positive number that a request can have."""
SAMPLER = {
    "temperature": [TINY, 1e-8, 100.0],
    "top_k": [1, 1 << 20],
    "top_p": [TINY, 1e-8, 1.0],
    "min_p": [1.0, 1e-300],
    "typical_p": [TINY, 1e-8, 1.0],
}
PENALTIES = {
    "repetition_penalty": [TINY, 1e-30, 100.0],
    "presence_penalty": [-2.0, 2.0],
    "frequency_penalty": [-2.0, 2.0],
    "no_repeat_ngram_size": [1, 2, 1 << 20],
    "encoder_no_repeat_ngram_size": [1, 1 << 20],
    "logit_bias": [{0: 100.0}, dict.fromkeys(range(VOCAB), -100.0), {VOCAB - 1: -100.0}],
    "bad_words_ids": [[[token] for token in range(VOCAB)], [[5] * 300]],
    "suppress_token_ids": [list(range(VOCAB)), [*range(1, VOCAB)]],
    "begin_suppress_token_ids": [list(range(VOCAB))],
    "allowed_token_ids": [[0], [VOCAB - 1, VOCAB - 1]],
    "stop_token_ids": [list(range(VOCAB))],
    "end_token_ids": [[], list(range(VOCAB))],
    "min_new_tokens": [1, 12, 1 << 20],
    "forced_bos_token_id": [0, VOCAB - 1],
    "forced_eos_token_id": [0, VOCAB - 1],
    "renormalize_logits": [True],
    "logprobs": [True],
    "top_logprobs": [0, 20],
}
BEAMS = {
    "num_beams": [2, 16],
    "length_penalty": [-100.0, 100.0, TINY],
    "early_stopping": [True, "never"],
    "diversity_penalty": [0.0, 100.0],
    "stream": [True],
}


@pytest.fixture(scope="module")
def family(tmp_path_factory, device):
    return Family("llama", tmp_path_factory.mktemp("llama"), device)


def settings(chosen: random.Random) -> dict:
    """Random settings with up to five fields at a limit of their range."""
    found = {name: chosen.choice(PENALTIES[name]) for name in chosen.sample(list(PENALTIES), chosen.randint(1, 5))}
    kind = chosen.choice(["greedy", "sampled", "beams"])
    if kind == "sampled":
        found |= {"do_sample": True, "seed": chosen.choice([0, (1 << 64) - 1])}
        found |= {name: chosen.choice(SAMPLER[name]) for name in chosen.sample(list(SAMPLER), chosen.randint(1, 4))}
    if kind == "beams":
        found |= {name: chosen.choice(BEAMS[name]) for name in chosen.sample(list(BEAMS), 3)}
        found |= {"num_beams": found.get("num_beams", 4)}
        found |= {"num_return_sequences": chosen.choice([1, found["num_beams"]])}
        if found.pop("diversity_penalty", 0.0):
            found |= {"num_beam_groups": found["num_beams"], "diversity_penalty": 100.0}
    return found


def plain(family: Family) -> list[Generate]:
    """Requests with ordinary settings, one for the base model and one for each adapter."""
    return [generate(family.pairs[name], i, PROMPTS[i] * 3, max_new_tokens=16) for i, name in enumerate(NAMES)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("drafts", [True, False])
def test_rows_at_the_bounds_end_and_change_no_other_row(family, seed, drafts) -> None:
    engine = speculating(family.pairs[BASE]) if drafts else family.engine()
    alone = run(family.engine(), plain(family))
    chosen = random.Random(seed)
    extreme = [
        generate(
            family.pairs[chosen.choice(NAMES)],
            100 + i,
            chosen.choice([prompt for prompt in PROMPTS if prompt]) * chosen.choice([1, 3]),
            **{"max_new_tokens": chosen.choice([1, 24])} | settings(chosen),
        )
        for i in range(12)
    ]
    requests = [*plain(family), *extreme]
    chosen.shuffle(requests)
    results = run(engine, requests, every=chosen.choice([0, 1]))
    assert results.finished.keys() | results.failed.keys() == {*range(len(NAMES)), *range(100, 112)}
    assert not results.failed, results.failed
    for sequence_id in range(len(NAMES)):
        assert results.texts(sequence_id) == alone.texts(sequence_id)
    for row in range(100, 112):
        assert all(0 <= token < VOCAB for text in results.texts(row) for token in text)
