"""Allowed sequences that are stored in the worker give the same answers as sequences in the request itself."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from server.engine.beams.allowed_sequences import arrays_of
from server.engine.sequences.stored_sequences import StoredSequences
from server.ipc.wire.generate_messages import ForgetSequences, SequencePart
from server.operations.generating.sequence_tries import build_trie
from tests.engine.harness import Results, generate, run
from tests.engine.test_allowed_sequences import PROMPTS, random_sequences

SETTINGS = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 8}


def parts(trie, set_id=1, model="llama", size=100):
    content = trie.tokens + trie.first_children + trie.ends
    for start in range(0, len(content), size):
        yield SequencePart(set_id, model, len(trie.ends), content[start : start + size])


@pytest.mark.parametrize("name", ["llama", "marian"])
@pytest.mark.parametrize("size", [7, 100, 1 << 20])
def test_answers_are_those_of_sequences_in_the_request(pairs, name, size):
    pair, trie = pairs(name), build_trie(random_sequences(400))
    sent = [generate(pair, i, prompt, **SETTINGS, allowed_sequences=trie) for i, prompt in enumerate(PROMPTS)]
    expected = run(pair.engine(), sent)
    engine = pair.engine()
    for part in parts(trie, 3, name, size):
        engine.take_sequences(part)
    found = run(engine, [generate(pair, i, p, **SETTINGS, sequence_set=3) for i, p in enumerate(PROMPTS)])
    for index in range(len(PROMPTS)):
        assert found.texts(index) == expected.texts(index)


def test_a_set_that_is_unknown_or_incomplete_fails_its_requests_alone(pairs):
    pair, trie = pairs("llama"), build_trie(random_sequences(50))
    engine = pair.engine()
    for part in [*parts(trie)][:-1]:
        engine.take_sequences(part)
    requests = [generate(pair, i, PROMPTS[0], sequence_set=number) for i, number in enumerate([1, 2, 0])]
    found = run(engine, requests)
    assert [found.failed[i].code for i in range(2)] == ["engine_error"] * 2 and found.texts(2)


def test_a_forgotten_set_stays_with_the_requests_that_run(pairs):
    pair, trie = pairs("llama"), build_trie(random_sequences(400))
    expected = run(pair.engine(), [generate(pair, 0, PROMPTS[0], **SETTINGS, allowed_sequences=trie)])
    engine, found = pair.engine(), Results()
    for part in parts(trie):
        engine.take_sequences(part)
    engine.add(generate(pair, 0, PROMPTS[0], **SETTINGS, sequence_set=1))
    found.take(engine.step())
    engine.take_sequences(ForgetSequences(1, "llama"))
    engine.add(generate(pair, 1, PROMPTS[0], sequence_set=1))
    while engine.has_work:
        found.take(engine.step())
    assert found.texts(0) == expected.texts(0) and found.failed[1].code == "engine_error"


def test_malformed_sets_are_not_used():
    trie = build_trie([[5, 6], [5, 7], [8]])
    for wrong, size in ((trie, 8), (msgspec.structs.replace(trie, ends=trie.ends + b"\0"), 97)):
        stored = StoredSequences(vocab_size=size)
        for part in parts(wrong):
            stored.take(part)
        assert stored.get(1) is None
    stored = StoredSequences(vocab_size=97)
    for part in parts(trie, size=5):
        assert stored.get(1) is None
        stored.take(part)
    arrays = stored.get(1)
    assert arrays is not None and all(map(np.array_equal, arrays, arrays_of(trie)))
    stored.take(ForgetSequences(1, "llama"))
    stored.take(ForgetSequences(1, "llama"))
    assert stored.get(1) is None
