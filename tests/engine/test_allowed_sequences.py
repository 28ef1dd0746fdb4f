"""Answers with `allowed_sequences` equal transformers' `generate` with `prefix_allowed_tokens_fn`."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from server.engine.beams.allowed_sequences import AllowedSequences, arrays_of, is_valid
from server.operations.generating.sequence_tries import build_trie
from tests.engine.harness import Results, as_transformers_settings, generate, reference, run
from tests.parity.checkpoints import random_ids

PROMPTS = random_ids(97, [4, 9], seed=5)


def random_sequences(count, longest=5, tokens=97, seed=0):
    """Random token sequences with many common prefixes. Some are prefixes of others."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(3, tokens, rng.integers(1, longest + 1)).tolist() for _ in range(count)]
    return [*made, *(item[:2] for item in made[::3])]


def followers(sequences, skip, end):
    """The function `prefix_allowed_tokens_fn` for transformers.

    skip: number of tokens before the allowed sequence, such as the prompt. end: end token.
    """
    after = {}
    for item in sequences:
        for place in range(len(item) + 1):
            after.setdefault(tuple(item[:place]), set()).add(item[place] if place < len(item) else end)
    # transformers refuses an empty list. The list would be empty for impossible texts (score minus infinity) only.
    return lambda batch, ids: sorted(after.get(tuple(ids.tolist()[skip:]), {end}))


def check(pair, sequences, **settings):
    settings = {"max_new_tokens": 8, **settings}
    settings.setdefault("num_return_sequences", settings["num_beams"])
    allowed = build_trie(sequences)
    requests = [generate(pair, i, p, **settings, allowed_sequences=allowed) for i, p in enumerate(PROMPTS)]
    results = run(pair.engine(max_batch_rows=512, kv_cache_bytes=1 << 24), requests)
    oracle = replace(pair, oracle=copy.deepcopy(pair.oracle).double())
    (end,) = pair.ends
    texts_allowed = {(*item, end) for item in sequences}
    forced = settings.get("forced_bos_token_id") is not None
    for i, prompt in enumerate(PROMPTS):
        skip = (len(pair.starts) or len(prompt)) + forced
        theirs = as_transformers_settings(pair, prompt, settings)
        texts, scores = reference(oracle, prompt, **theirs, prefix_allowed_tokens_fn=followers(sequences, skip, end))
        found = results.finished[i].hypotheses
        assert {tuple(hypothesis.token_ids[forced:]) for hypothesis in found} <= texts_allowed
        if scores is None:
            assert results.texts(i) == texts
            continue
        # If there are too few answers, transformers adds impossible hypotheses.
        possible = [place for place, score in enumerate(scores) if score > -1e8]
        assert len(found) == len(possible)
        assert [hypothesis.score for hypothesis in found] == pytest.approx([scores[i] for i in possible], abs=1e-4)
        assert results.texts(i) == [texts[place] for place in possible]


@pytest.mark.parametrize("num_beams", [1, 4, 64])
@pytest.mark.parametrize("name", ["llama", "marian"])
def test_equals_transformers(pairs, name, num_beams):
    check(pairs(name), random_sequences(400), num_beams=num_beams)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
@pytest.mark.parametrize("more", [{"early_stopping": True}, {"length_penalty": 0.0}, {"repetition_penalty": 1.5}])
def test_with_other_settings(pairs, name, more):
    check(pairs(name), random_sequences(60, tokens=12), num_beams=4, **more)


@pytest.mark.parametrize("num_beams", [4, 64])
@pytest.mark.parametrize("name", ["llama", "marian"])
def test_fewer_sequences_than_beams(pairs, name, num_beams):
    check(pairs(name), [[5, 6], [5], [9, 10, 11]], num_beams=num_beams)


def test_begins_after_a_forced_first_token(pairs):
    check(pairs("marian"), random_sequences(50), num_beams=4, forced_bos_token_id=11)


@pytest.mark.parametrize("settings", [{"num_beams": 6}, {"do_sample": True, "temperature": 2.0, "seed": 3}])
@pytest.mark.parametrize("name", ["llama", "marian"])
def test_streamed_tokens_are_the_begin_of_an_allowed_answer(pairs, name, settings):
    pair, sequences = pairs(name), random_sequences(80)
    more = {"allowed_sequences": build_trie(sequences), "stream": True}
    results = run(pair.engine(), [generate(pair, i, p, **settings, **more) for i, p in enumerate(PROMPTS)])
    for i, _ in enumerate(PROMPTS):
        ((*text, end),) = results.texts(i)
        assert text in sequences and [end] == pair.ends
        assert [*text, end][: len(results.tokens[i])] == results.tokens[i]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_preempted_searches_go_on(pairs, num_beams):
    pair, allowed = pairs("llama"), build_trie(random_sequences(400, longest=10))
    settings = {"num_beams": num_beams, "allowed_sequences": allowed, "num_return_sequences": num_beams}
    prompts = random_ids(97, [6] * 4, seed=2)
    requests = [generate(pair, i, prompt, **settings) for i, prompt in enumerate(prompts)]
    expected = run(pair.engine(), requests)
    engine = pair.engine()
    scheduler = engine.models["llama"].generation.scheduler
    found = Results()
    for request in requests:
        engine.add(request)
    while engine.has_work:
        if found.steps % 3 == 2 and scheduler.running:
            scheduler._preempt(scheduler.running[0])
        found.take(engine.step())
        found.steps += 1
    assert scheduler.num_preemptions
    assert [found.texts(i) for i in range(4)] == [expected.texts(i) for i in range(4)]


def test_next_tokens_equal_those_of_the_sequences():
    sequences = random_sequences(300, tokens=20)
    allowed = AllowedSequences(arrays_of(build_trie(sequences)), [2])
    follow = followers(sequences, 0, 2)
    prefixes = sorted({tuple(item[:place]) for item in sequences for place in range(len(item) + 1)})
    nodes = np.zeros(len(prefixes), dtype=np.int64)
    for depth in range(max(map(len, prefixes))):
        longer = np.array([len(prefix) > depth for prefix in prefixes])
        tokens = np.array([prefix[depth] if len(prefix) > depth else 0 for prefix in prefixes])
        nodes = np.where(longer, allowed.children(nodes, tokens), nodes)
    rows, tokens = allowed.next_tokens(np.append(nodes, -1))
    for index, prefix in enumerate(prefixes):
        assert sorted(tokens[rows == index].tolist()) == follow(0, np.array(prefix))
        assert allowed.may_end(int(nodes[index])) == (list(prefix) in sequences)
    assert not (rows == len(prefixes)).any()
    assert allowed.children(np.array([0, -1, 0]), np.array([0, 5, 96])).tolist() == [-1, -1, -1]


def test_memory_is_nine_bytes_per_node():
    sequences = random_sequences(2000)
    nodes = 1 + len({tuple(item[:place]) for item in sequences for place in range(1, len(item) + 1)})
    trie = build_trie(sequences)
    assert len(trie.tokens) + len(trie.first_children) + len(trie.ends) == 9 * nodes + 4


def _broken():
    trie = build_trie([[5, 6], [5, 7], [8]])
    tokens, children = np.frombuffer(trie.tokens, "<i4").copy(), np.frombuffer(trie.first_children, "<i4").copy()
    for place, value in itertools.product(range(len(children)), [-1, 0, 2, 100]):
        if children[place] != value:
            changed = children.copy()
            changed[place] = value
            yield msgspec.structs.replace(trie, first_children=changed.tobytes())
    tokens[2] = 97
    yield msgspec.structs.replace(trie, tokens=tokens.tobytes())
    yield msgspec.structs.replace(trie, ends=trie.ends[:-1])


def test_malformed_tries_are_found(pairs):
    assert is_valid(build_trie([[5, 6], [5, 7], [8]]), 97)
    broken = list(_broken())
    for trie in broken:
        if is_valid(trie, 97):  # another order of the same nodes
            AllowedSequences(arrays_of(trie), [2]).next_tokens(np.arange(len(trie.ends)))
    assert not is_valid(broken[-1], 97) and not is_valid(broken[-2], 97)
    pair = pairs("llama")
    found = run(pair.engine(), [generate(pair, 0, PROMPTS[0], allowed_sequences=broken[-2])])
    assert found.failed[0].code == "engine_error"
