"""Beam searches with many beams, whose candidates are found in two passes, equal a single pass and transformers."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from server.engine.beams.beam_search import BeamSearch, largest
from server.engine.device import wide_searches
from server.operations.generating.sequence_tries import build_trie
from tests.engine.harness import generate, reference, run
from tests.engine.test_allowed_sequences import PROMPTS, random_sequences

MORE = {
    "plain": {},
    "renormalized": {"renormalize_logits": True, "suppress_token_ids": [5, 6]},
    "repetition": {"repetition_penalty": 1.3},
    "ends": {"min_new_tokens": 3},
    "stream": {"stream": True},
    "sequences": {"allowed_sequences": build_trie(random_sequences(500, longest=7))},
}


def answers(pair, settings, together=True):
    requests = [generate(pair, i, p, num_return_sequences=40, **settings) for i, p in enumerate(PROMPTS)]
    batches = [requests] if together else [[request] for request in requests]
    results = [run(pair.engine(max_batch_rows=512, kv_cache_bytes=1 << 24), batch) for batch in batches]
    return [
        [(hypothesis.token_ids, hypothesis.score) for hypothesis in end.hypotheses]
        for result in results
        for end in result.finished.values()
    ]


@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
@pytest.mark.parametrize("name", ["llama", "marian"])
@pytest.mark.parametrize("first", [1, 3, 16])
def test_two_passes_find_what_one_finds(pairs, monkeypatch, name, more, first):
    pair, settings = pairs(name), {"num_beams": 48, "max_new_tokens": 9, **more}
    passes = []
    widen = wide_searches._rows_with_more
    # Searches that only limit their answers to sequences take another way (`test_sequence_candidates`).
    monkeypatch.setattr("server.engine.choosing.candidates.allowed_candidates", lambda *arguments: None)
    monkeypatch.setattr(wide_searches, "MIN_WIDE", 1 << 30)
    expected = answers(pair, settings)
    monkeypatch.setattr(wide_searches, "MIN_WIDE", 64)
    monkeypatch.setattr("server.engine.device.output_rows.FIRST_CANDIDATES", first)
    monkeypatch.setattr(wide_searches, "_rows_with_more", lambda *a: passes.append(widen(*a)) or passes[-1])
    assert answers(pair, settings) == expected == answers(pair, settings, together=False)
    assert passes and (first == 16 or any(passes))
    assert first == 1 or not all(len(rows) == 96 for rows in passes)


def test_groups_that_are_processed_beside_others_that_are_not(pairs):
    pair = pairs("llama")
    each = [{"num_beams": 48}, {"num_beams": 48, "min_new_tokens": 3}, {"num_beams": 1}, {"num_beams": 2}]

    def requests(numbers):
        return [generate(pair, i, PROMPTS[i % 2], max_new_tokens=8, **each[i]) for i in numbers]

    options = {"max_batch_rows": 512, "kv_cache_bytes": 1 << 24}
    mixed = run(pair.engine(**options), requests(range(4)))
    for index in range(4):
        alone = run(pair.engine(**options), requests([index]))
        assert mixed.texts(index) == alone.texts(index)


@pytest.mark.parametrize("num_beams", [64, 200])
def test_equals_transformers(pairs, num_beams):
    pair = pairs("llama")
    settings = {"num_beams": num_beams, "num_return_sequences": num_beams, "max_new_tokens": 6}
    found = run(
        pair.engine(max_batch_rows=512, kv_cache_bytes=1 << 25), [generate(pair, 0, PROMPTS[0], **settings)]
    ).finished[0]
    oracle = replace(pair, oracle=copy.deepcopy(pair.oracle).double())
    texts, scores = reference(oracle, PROMPTS[0], **settings)
    assert [end.score for end in found.hypotheses] == pytest.approx(scores, abs=1e-4)
    assert {tuple(end.token_ids) for end in found.hypotheses} == {tuple(text) for text in texts}


def test_the_largest_of_many_values_are_those_of_a_stable_sort():
    rng = np.random.default_rng(0)
    for kind in range(4):
        values = rng.normal(size=(3, 6_000)).astype(np.float32)
        if kind == 1:
            values = values.round(1)  # many ties
        elif kind == 2:
            values[:, 50:] = -np.inf
        elif kind == 3:
            values[:] = -np.inf
        expected = (-values).argsort(axis=1, kind="stable")[:, :512]
        assert (largest(values, 512) == expected).all()


def test_a_row_is_searched_again_only_if_it_may_have_more():
    class Group:
        beams = BeamSearch(4, 9, frozenset([1]), 1.0, False)

    Group.beams.advance(np.zeros((1, 8), np.float32) - np.arange(8), np.arange(8)[None] + 2)
    values = np.array([[-1, -2, -9], [-1, -1.2, -1.3], [-1, -2, -9], [-1, -2, -9]], np.float32)
    # With the beam scores 0, -1, -2 and -3, the eighth best sum is -4. Only the last value of the second row is better.
    assert wide_searches._rows_with_more(values, [Group]) == [1]
