"""Streamed tokens of a beam search are never retracted, and together they equal the best hypothesis."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.beams.beam_groups import make_search
from server.engine.beams.beam_search import BeamSearch
from server.ipc.wire.params import GenerationParams
from tests.engine.harness import generate, run
from tests.engine.test_beam_cases import random_case
from tests.ipc.one_row import id_of


@st.composite
def searches(draw) -> tuple[GenerationParams, int]:
    groups = draw(st.sampled_from([1, 1, 2, 3, 4]))
    params = GenerationParams(
        num_beams=groups * draw(st.integers(2 if groups == 1 else 1, 4)),
        num_beam_groups=groups,
        diversity_penalty=draw(st.sampled_from([0.1, 1.0, 20.0])) if groups > 1 else 0.0,
        length_penalty=draw(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 1.0, 2.5, 6.0])),
        early_stopping=draw(st.sampled_from([True, False, "never"])),
    )
    return params, draw(st.integers(1, 14))


@st.composite
def models(draw):
    """A random model: vocabulary size, function from a text to log-probabilities, and set of end tokens."""
    seed = draw(st.integers(0, 2**32 - 1))
    vocab = draw(st.sampled_from([2, 5, 9, 30]))
    spread = draw(st.sampled_from([0.3, 2.0, 8.0]))
    banned = draw(st.sampled_from([0.0, 0.0, 0.3, 0.8]))

    def log_probs(text: list[int]) -> np.ndarray:
        chance = np.random.default_rng([seed, *text])
        logits = chance.normal(size=vocab) * spread
        values = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        return np.where(chance.random(vocab) < banned, -np.inf, values).astype(np.float32)

    return vocab, log_probs, frozenset(draw(st.sets(st.integers(0, vocab - 1), max_size=3)))


def agreed_after_each_step(case: tuple[GenerationParams, int], model) -> tuple[list[list[int]], list[int]]:
    """Run a search. Returns the prefix that may be streamed after each step, and the tokens of the best hypothesis."""
    vocab, log_probs, ends = model
    search = make_search(*case, ends)
    assert search is not None
    agreed = []
    while not search.done:
        rows = np.stack([log_probs(beam.tokens) for beam in search.running])
        if rows.max() == -np.inf:
            break
        tokens = np.argsort(-rows, axis=1, kind="stable")[:, : min(search.num_candidates, vocab)]
        search.advance(np.take_along_axis(rows, tokens, axis=1), tokens)
        agreed.append(list(search.agreed_prefix()))
    return agreed, search.hypotheses(1)[0].tokens


def is_never_retracted(case: tuple[GenerationParams, int], model) -> bool:
    agreed, best = agreed_after_each_step(case, model)
    grows = all(later[: len(earlier)] == earlier for earlier, later in pairwise(agreed))
    return grows and all(best[: len(text)] == text for text in agreed)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(searches(), models())
def test_streamed_tokens_are_never_retracted(case, model):
    assert is_never_retracted(case, model)
    agreed, best = agreed_after_each_step(case, model)
    if len(agreed) == case[1]:
        assert agreed[-1] == best


@pytest.mark.parametrize("bug", ["the best beam alone", "without the best finished one"])
def test_a_prefix_that_is_too_long_is_noticed(monkeypatch, bug):
    """Negative control: if the prefix ignores beams that can still become the best hypothesis, it is retracted."""

    def too_long(self) -> list[int]:
        if self.done or not self.running:
            return self.finished[0].tokens if self.finished else []
        texts = [beam.tokens for beam in self.running if beam.score > -np.inf]
        texts = texts[:1] if bug == "the best beam alone" else texts
        common = 0
        while texts and common < len(texts[0]) and len({text[common] for text in texts}) == 1:
            common += 1
        return texts[0][:common] if texts else []

    monkeypatch.setattr(BeamSearch, "agreed_prefix", too_long)

    @settings(max_examples=400, deadline=None, derandomize=True, database=None)
    @given(searches(), models())
    def fails(params, model):
        assert is_never_retracted(params, model)

    with pytest.raises(AssertionError):
        fails()


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bart"])
def test_through_the_engine(pairs, name):
    """In the engine, streamed tokens equal the best hypothesis, for random searches. The beam lag is reported."""
    pair, chance = pairs(name), random.Random(f"streams of {name}")
    requests = []
    for number in range(40):
        prompt, chosen = random_case(chance, name)
        groups = [g for g in (1, 2, 3, 4) if chosen["num_beams"] % g == 0]
        chosen["num_beam_groups"] = chance.choice(groups)
        chosen["diversity_penalty"] = 0.7 if chosen["num_beam_groups"] > 1 else 0.0
        requests.append(generate(pair, number, prompt, stream=True, logprobs=chance.random() < 0.3, **chosen))
    engine = pair.engine()
    lags: list[int] = []
    stats = engine.stats
    engine.stats = lambda: _collect_lags(stats(), lags)
    results = run(engine, requests, every=2)
    for request in requests:
        assert results.tokens.get(id_of(request), []) == results.texts(id_of(request))[0]
        for event in results.token_events[id_of(request)]:
            if request.params.logprobs:
                assert [entry.token_id for entry in event.logprobs] == event.token_ids
    assert min(lags) >= 0 < max(lags) and len(lags) > len(requests)


def test_the_beam_lag_counts_generated_tokens_that_are_not_streamed(pairs):
    pair = pairs("llama")
    engine = pair.engine()
    engine.add(generate(pair, 0, [5, 6, 7], num_beams=4, max_new_tokens=8, stream=True))
    engine.add(generate(pair, 1, [5, 6, 7], num_beams=4, max_new_tokens=8))
    engine.add(generate(pair, 2, [5, 6, 7], max_new_tokens=8, stream=True))
    agreed, expected = 0, []
    while engine.has_work:
        output = engine.step()
        for event in output.tokens if output is not None else []:
            agreed += len(event.token_ids) if event.sequence_id == 0 else 0
        running = engine.models[pair.name].generation.scheduler.running
        expected += [group.beams.length - agreed for group in running if group.sequence_id == 0 and group.beams.length]
    assert [lag for step in engine.stats().steps for lag in step.beam_lag_tokens] == expected


def _collect_lags(stats, lags: list[int]):
    lags += [lag for step in stats.steps for lag in step.beam_lag_tokens]
    return stats
