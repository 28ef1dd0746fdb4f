"""Candidates among allowed tokens are those that the processors leave: the same answers and scores, bit for bit."""

from __future__ import annotations

import pytest

from server.engine.choosing import candidates, sequence_candidates
from server.operations.generating.sequence_tries import build_trie
from tests.engine.harness import generate, run
from tests.engine.test_allowed_sequences import PROMPTS, random_sequences

SETTINGS = {
    "plain": ({}, True),
    "shortest": ({"min_new_tokens": 4}, True),
    "bans": ({"suppress_token_ids": [5, 6, 7], "begin_suppress_token_ids": [9], "bad_words_ids": [[11]]}, True),
    "stream": ({"stream": True, "early_stopping": True}, True),
    "short": ({"max_new_tokens": 2}, True),
    "first": ({"forced_bos_token_id": 12}, True),
    "last": ({"forced_eos_token_id": 2, "max_new_tokens": 3}, True),
    "repetition": ({"repetition_penalty": 1.3}, False),
    "phrases": ({"bad_words_ids": [[5, 6]]}, False),
    "renormalized": ({"renormalize_logits": True}, False),
    "reported": ({"logprobs": True}, False),
}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call, whether only the allowed logits were read."""
    calls: list[bool] = []

    def counted(*arguments):
        result = sequence_candidates.allowed_candidates(*arguments)
        calls.append(result is not None)
        return result

    monkeypatch.setattr(candidates, "allowed_candidates", counted)
    return calls


def answers(pair, sequences, numbers=(0, 1), **settings):
    """Tokens and scores of all answers. numbers: prompts that run together."""
    settings = {"num_return_sequences": settings["num_beams"], "max_new_tokens": 8, **settings}
    allowed = build_trie(sequences)
    requests = [generate(pair, i, PROMPTS[i], allowed_sequences=allowed, **settings) for i in numbers]
    results = run(pair.engine(max_batch_rows=512, kv_cache_bytes=1 << 24), requests)
    return [[(end.token_ids, end.score, end.logprobs) for end in results.finished[i].hypotheses] for i in numbers]


@pytest.mark.parametrize("name", ["llama", "marian"])
@pytest.mark.parametrize("num_beams", [2, 48])
@pytest.mark.parametrize("more", SETTINGS)
def test_answers_are_those_of_the_processors(pairs, found, monkeypatch, name, num_beams, more):
    settings, is_used = SETTINGS[more]
    (end,) = pairs(name).ends
    # Some sequences have the end token inside, which is then a child and an end at once.
    sequences = [*random_sequences(60, tokens=40), [5, end, 7], [5], [9, end], [9]]
    result = answers(pairs(name), sequences, num_beams=num_beams, **settings)
    assert any(found) == is_used, found
    (alone,) = answers(pairs(name), sequences, (0,), num_beams=num_beams, **settings)
    monkeypatch.setattr(candidates, "allowed_candidates", lambda *arguments: None)
    assert result == answers(pairs(name), sequences, num_beams=num_beams, **settings)
    # Sums of matrix products may be rounded differently beside a second prompt.
    assert [tokens for tokens, _, _ in result[0]] == [tokens for tokens, _, _ in alone]
    assert [score for _, score, _ in result[0]] == pytest.approx([score for _, score, _ in alone], abs=1e-4)


def test_fewer_allowed_tokens_than_candidates(pairs, found, monkeypatch):
    for sequences in ([[5]], [[5, 6], [7]], [[token] for token in range(3, 97)]):
        result = answers(pairs("marian"), sequences, num_beams=32)
        with monkeypatch.context() as patched:
            patched.setattr(candidates, "allowed_candidates", lambda *arguments: None)
            assert result == answers(pairs("marian"), sequences, num_beams=32)


def test_many_allowed_tokens_take_the_other_way(pairs, found):
    """The 94 tokens of the first step are most of the vocabulary; the few of the second step are not."""
    sequences = [[token, 5] for token in range(3, 97)]
    answers(pairs("llama"), sequences, (0,), num_beams=4)
    assert found[0] is False and any(found)


def test_searches_beside_others_take_the_other_way(pairs, found):
    pair, allowed = pairs("llama"), build_trie(random_sequences(60))
    settings = [{"num_beams": 4, "allowed_sequences": allowed}, {"num_beams": 4}, {"num_beams": 1}]
    requests = [generate(pair, i, PROMPTS[0], max_new_tokens=8, **each) for i, each in enumerate(settings)]
    mixed = run(pair.engine(), requests)
    for i, request in enumerate(requests):
        assert run(pair.engine(), [request]).texts(i) == mixed.texts(i)
    assert any(found) and not all(found)
