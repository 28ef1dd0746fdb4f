"""Diverse beam search equals the published algorithm (`diverse_oracle`), and transformers for one group."""

from __future__ import annotations

import pytest
import transformers

from server.engine.beams.beam_groups import GroupSearch
from tests.engine.diverse_oracle import diverse_search
from tests.engine.harness import as_transformers_settings, generate, reference, run
from tests.parity.checkpoints import random_ids

PROMPTS = random_ids(97, [1, 5, 11], seed=3)
ENDS = [2, 9, 17, 33, 34, 35, 36, 70, 71]
VARIANTS = {
    "two of two": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "every beam alone": {"num_beams": 4, "num_beam_groups": 4, "diversity_penalty": 0.3, "num_return_sequences": 4},
    "strong": {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 5.0, "num_return_sequences": 6},
    "strongest": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 100.0, "num_return_sequences": 4},
    "sixteen": {"num_beams": 16, "num_beam_groups": 8, "diversity_penalty": 0.7, "num_return_sequences": 16},
    "early": {"num_beams": 6, "num_beam_groups": 2, "diversity_penalty": 1.0, "early_stopping": True},
    "never, long favoured": {
        "num_beams": 4,
        "num_beam_groups": 2,
        "diversity_penalty": 0.4,
        "early_stopping": "never",
        "length_penalty": 2.0,
    },
    "short favoured": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.4, "length_penalty": -1.0},
    "many ends": {
        "num_beams": 8,
        "num_beam_groups": 4,
        "diversity_penalty": 0.4,
        "end_token_ids": ENDS,
        "num_return_sequences": 8,
    },
    "many ends early": {
        "num_beams": 6,
        "num_beam_groups": 3,
        "diversity_penalty": 1.5,
        "end_token_ids": ENDS,
        "early_stopping": True,
        "num_return_sequences": 3,
    },
    "one token": {
        "num_beams": 4,
        "num_beam_groups": 2,
        "diversity_penalty": 1.0,
        "max_new_tokens": 1,
        "num_return_sequences": 4,
    },
}


def compare(results, sequence_id, texts, scores):
    assert results.texts(sequence_id) == texts
    assert [h.score for h in results.finished[sequence_id].hypotheses] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "marian"])
def test_equals_the_published_algorithm(pairs, name):
    """All variants and prompts equal the oracle.

    They run in one batch, each together with a greedy request and a plain beam search.
    """
    pair = pairs(name)
    cases = [(prompt, {"max_new_tokens": 8, **variant}) for variant in VARIANTS.values() for prompt in PROMPTS]
    requests = [generate(pair, i, prompt, **settings) for i, (prompt, settings) in enumerate(cases)]
    others = [generate(pair, 1000 + i, prompt, num_beams=1 + 2 * (i % 2)) for i, prompt in enumerate(PROMPTS)]
    results = run(pair.engine(), [*requests, *others], every=2)
    for i, (prompt, settings) in enumerate(cases):
        compare(results, i, *diverse_search(pair, prompt, **{"end_token_ids": pair.ends, **settings}))
    for i, prompt in enumerate(PROMPTS):
        assert results.texts(1000 + i) == reference(pair, prompt, num_beams=1 + 2 * (i % 2), max_new_tokens=12)[0]


@pytest.mark.parametrize("early, penalty", [(True, 1.0), (False, -0.5), ("never", 2.0)])
@pytest.mark.parametrize("name", ["llama", "bart"])
def test_the_oracle_with_one_group_equals_transformers(pairs, name, early, penalty):
    pair = pairs(name)
    settings = {"num_beams": 3, "max_new_tokens": 8, "length_penalty": penalty, "early_stopping": early}
    settings |= {"num_return_sequences": 3, "end_token_ids": ENDS}
    for prompt in PROMPTS:
        theirs = reference(pair, prompt, **as_transformers_settings(pair, prompt, settings))
        ours = diverse_search(pair, prompt, num_beam_groups=1, diversity_penalty=0.0, **settings)
        assert (ours[0], ours[1]) == (theirs[0], pytest.approx(theirs[1], abs=1e-4))


def test_without_a_penalty_every_group_equals_a_search_of_its_size(pairs):
    """Without a penalty, three groups of two beams find the same hypotheses as a search with two beams."""
    pair = pairs("llama")
    settings = {"num_beams": 6, "num_beam_groups": 3, "num_return_sequences": 6}
    results = run(pair.engine(), [generate(pair, i, prompt, **settings) for i, prompt in enumerate(PROMPTS)])
    for i, prompt in enumerate(PROMPTS):
        texts, _ = reference(pair, prompt, num_beams=2, num_return_sequences=2, max_new_tokens=12)
        assert results.texts(i) == [text for text in texts for _ in range(3)]
    diverse = run(pair.engine(), [generate(pair, 0, PROMPTS[1], diversity_penalty=50.0, **settings)])
    assert len({text[0] for text in diverse.texts(0)}) >= 3


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_with_processors(pairs, name):
    """The diversity penalty is applied after the logits processors, and not to a forced token."""
    pair = pairs(name)
    skip = len(pair.starts) or len(PROMPTS[2])
    theirs = transformers.LogitsProcessorList(
        [
            transformers.RepetitionPenaltyLogitsProcessor(1.4),
            transformers.NoRepeatNGramLogitsProcessor(2),
            transformers.MinNewTokensLengthLogitsProcessor(skip, 3, eos_token_id=ENDS, device=pair.loaded.device),
            transformers.ForcedBOSTokenLogitsProcessor(11) if skip == 1 else lambda ids, scores: scores,
        ]
    )
    search = {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.8, "num_return_sequences": 6}
    search |= {"max_new_tokens": 8, "end_token_ids": ENDS}
    ours = {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "min_new_tokens": 3}
    ours["forced_bos_token_id"] = 11 if skip == 1 else None
    results = run(pair.engine(), [generate(pair, 0, PROMPTS[2], **search, **ours)])
    compare(results, 0, *diverse_search(pair, PROMPTS[2], **search, processors=theirs))


def test_groups_with_fewer_tokens_than_beams(pairs):
    """With three allowed tokens and eight beams, there are fewer hypotheses than beams. All blocks are freed."""
    pair = pairs("llama")
    settings = {"num_beams": 8, "num_beam_groups": 4, "diversity_penalty": 1.0, "num_return_sequences": 8}
    settings |= {"allowed_token_ids": [2, 5, 6], "max_new_tokens": 2}
    results = run(pair.engine(), [generate(pair, 0, PROMPTS[0], **settings)])
    texts = results.texts(0)
    assert texts and {token for text in texts for token in text} <= {2, 5, 6}
    banned = {"bad_words_ids": [[token] for token in range(97) if token not in (5, 2)] + [[5, 5], [5, 2]]}
    stuck = run(pair.engine(), [generate(pair, 1, PROMPTS[0], **settings, **banned)])
    assert [text[:1] for text in stuck.texts(1)] != []


def test_a_missing_penalty_is_noticed(pairs, monkeypatch):
    """Negative control: without the diversity penalty, the result differs from the oracle."""
    pair = pairs("llama")
    monkeypatch.setattr(GroupSearch, "_diverse", lambda self, values, ids, taken, n: (values[:, :n], ids[:, :n]))
    settings = {"max_new_tokens": 8, **VARIANTS["strong"]}
    results = run(pair.engine(), [generate(pair, 0, PROMPTS[1], **settings)])
    assert results.texts(0) != diverse_search(pair, PROMPTS[1], **settings, end_token_ids=pair.ends)[0]


def test_too_few_candidates_are_noticed(pairs, monkeypatch):
    """Negative control: with too few candidates per row, the result differs from the oracle."""
    pair = pairs("llama")
    real = GroupSearch.__init__

    def short(self, *args):
        real(self, *args)
        self.num_candidates = self.groups[0].num_candidates

    monkeypatch.setattr(GroupSearch, "__init__", short)
    settings = {"max_new_tokens": 8, **VARIANTS["every beam alone"], "diversity_penalty": 50.0}
    results = run(pair.engine(), [generate(pair, 0, PROMPTS[1], **settings)])
    assert results.texts(0) != diverse_search(pair, PROMPTS[1], **settings, end_token_ids=pair.ends)[0]
