"""Beam search with required terms equals a slow reference (`term_oracle`), in one batch with other requests."""

from __future__ import annotations

import random

import pytest
import transformers

from server.engine.beams.required_terms import RequiredTerms
from server.engine.beams.term_search import divide_beams
from server.ipc.wire.generate_messages import Vocabulary
from server.ipc.wire.params import RequiredTerm
from tests.engine.harness import generate, reference, run
from tests.engine.term_oracle import Terms, Texts, allocate, term_search
from tests.parity.checkpoints import random_ids

PIECES = [b" a", b" b", b"a", b"b", b"ab", b" ab", b"c", b" c", b" ", b".", b"\xc3", b"\xa4", b"-", b"ba", b" bac"]
TOKEN_BYTES = [b"", b"", b"", *(PIECES[i % len(PIECES)] for i in range(94))]
PROMPTS = random_ids(97, [1, 5, 11], seed=3)
ENDS = [2, 9, 17]


def spell(*pieces: bytes, text: str = "") -> tuple[str, list[int]]:
    """A spelling of a term: its text, and the token ids of the given pieces.

    If several tokens have the same bytes, the smallest id is used.
    """
    tokens = [TOKEN_BYTES.index(piece) for piece in pieces]
    return text or b"".join(pieces).decode().strip(), tokens


AB = [spell(b" ab"), spell(b" a", b"b"), spell(b"ab")]
BACA = [spell(b" bac", b"a")]
PHRASE = [spell(b" c", b"a", b" b", b"c", b".")]
UMLAUT = [spell(b" b", b"\xc3", b"\xa4", b"c")]
SPACED = [spell(b" ", b"ba", b"ba")]
VARIANTS: dict[str, tuple[Terms, dict]] = {
    "one token": ([AB], {"num_beams": 4}),
    "two tokens": ([BACA], {"num_beams": 4, "num_return_sequences": 4}),
    "a phrase": ([PHRASE], {"num_beams": 6, "num_return_sequences": 2}),
    "three terms": ([AB, BACA, UMLAUT], {"num_beams": 10, "max_new_tokens": 14}),
    "more tokens than beams": ([PHRASE, BACA, UMLAUT], {"num_beams": 3, "max_new_tokens": 14}),
    "a space of its own": ([SPACED], {"num_beams": 5, "early_stopping": True}),
    "many ends": ([BACA, AB], {"num_beams": 8, "end_token_ids": ENDS, "num_return_sequences": 8}),
    "short favoured": ([AB], {"num_beams": 4, "end_token_ids": ENDS, "length_penalty": -1.0}),
    "never": ([BACA], {"num_beams": 4, "end_token_ids": ENDS, "early_stopping": "never", "length_penalty": 2.0}),
    "no room": ([PHRASE], {"num_beams": 4, "max_new_tokens": 3, "num_return_sequences": 4}),
    "a stop string": ([AB], {"num_beams": 4, "stop_texts": [b"."], "num_return_sequences": 2}),
}


def required(terms: Terms) -> list[RequiredTerm]:
    return [RequiredTerm(spellings) for spellings in terms]


@pytest.mark.parametrize("name", ["t5", "marian"])
def test_equals_the_reference(pairs, name):
    pair, engine = pairs(name), pairs(name).engine()
    engine.set_vocabulary(Vocabulary(name, TOKEN_BYTES))
    cases = [
        (prompt, terms, {"max_new_tokens": 9, **more}) for terms, more in VARIANTS.values() for prompt in PROMPTS[1:]
    ]
    requests = [
        generate(pair, i, prompt, terms=required(terms), stream=True, **settings)
        for i, (prompt, terms, settings) in enumerate(cases)
    ]
    plain = [generate(pair, 1000 + n, PROMPTS[1], num_beams=n) for n in (1, 3)]
    results = run(engine, [*requests, *plain], every=2)
    complete = 0
    for i, (prompt, terms, settings) in enumerate(cases):
        texts = Texts(TOKEN_BYTES, terms, pair.starts)
        (stop,) = settings.pop("stop_texts", [None])
        expected, scores = term_search(pair, prompt, texts, stop=stop, **{"end_token_ids": pair.ends, **settings})
        assert results.texts(i) == expected, cases[i]
        assert [h.score for h in results.finished[i].hypotheses] == pytest.approx(scores, abs=1e-4)
        assert results.tokens[i] == expected[0], "the streamed tokens are those of the answer"
        found = texts.progress(expected[0]) == sum(texts.sizes)
        assert found or results.finished[i].hypotheses[0].finish_reason == "length"
        complete += found
    assert complete > len(cases) // 2
    for n in (1, 3):
        assert results.texts(1000 + n) == reference(pair, PROMPTS[1], num_beams=n, max_new_tokens=12)[0]


def test_with_processors(pairs):
    pair, engine = pairs("bart"), pairs("bart").engine()
    engine.set_vocabulary(Vocabulary("bart", TOKEN_BYTES))
    theirs = transformers.LogitsProcessorList(
        [
            transformers.RepetitionPenaltyLogitsProcessor(1.4),
            transformers.NoRepeatNGramLogitsProcessor(2),
            transformers.MinNewTokensLengthLogitsProcessor(1, 6, eos_token_id=ENDS, device=pair.loaded.device),
            transformers.ForcedBOSTokenLogitsProcessor(0),
        ]
    )
    ours = {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "min_new_tokens": 6, "forced_bos_token_id": 0}
    search = {"num_beams": 6, "num_return_sequences": 6, "max_new_tokens": 10, "end_token_ids": ENDS}
    results = run(engine, [generate(pair, 0, PROMPTS[2], terms=required([BACA, AB]), **search, **ours)])
    texts, scores = term_search(
        pair, PROMPTS[2], Texts(TOKEN_BYTES, [BACA, AB], pair.starts), processors=theirs, **search
    )
    assert results.texts(0) == texts
    assert [h.score for h in results.finished[0].hypotheses] == pytest.approx(scores, abs=1e-4)


def test_without_a_term_to_place_it_is_a_plain_beam_search(pairs):
    """If the prefix of the answer already contains the term, the search is a plain beam search.

    The prefix ends with a full stop, so that no further token can make the term part of a longer word.
    """
    pair, engine = pairs("t5"), pairs("t5").engine()
    engine.set_vocabulary(Vocabulary("t5", TOKEN_BYTES))
    prefix = [*pair.starts, *spell(b" ab", b".")[1]]
    settings = {"num_beams": 4, "num_return_sequences": 4, "end_token_ids": ENDS, "max_new_tokens": 8}
    bound = generate(pair, 0, PROMPTS[1], terms=required([AB]), logprobs=True, **settings)
    free = generate(pair, 1, PROMPTS[1], logprobs=True, **settings)
    for message in (bound, free):
        message.rows[0].decoder_token_ids[:] = prefix
    results = run(engine, [bound, free])
    assert results.finished[0].hypotheses == results.finished[1].hypotheses


@pytest.mark.parametrize("banned", [[], [t for t, data in enumerate(TOKEN_BYTES) if data]])
def test_a_term_that_cannot_be_spelled(pairs, banned):
    """If a term cannot be spelled, the search still ends.

    Suppressed are the tokens of the term, or all tokens with text, so that only an end token is left.
    """
    pair, engine = pairs("bart"), pairs("bart").engine()
    engine.set_vocabulary(Vocabulary("bart", TOKEN_BYTES))
    suppressed = [t for t, data in enumerate(TOKEN_BYTES) if b"c" in data]
    settings = {"num_beams": 4, "max_new_tokens": 6, "end_token_ids": [2]}
    settings |= {"suppress_token_ids": [0, 1, *banned] if banned else suppressed}
    results = run(engine, [generate(pair, 0, PROMPTS[1], terms=required([BACA]), **settings)])
    (hypothesis,) = results.finished[0].hypotheses
    assert hypothesis.finish_reason == ("stop" if banned else "length")
    assert (hypothesis.token_ids == [2]) is bool(banned)


@pytest.mark.parametrize(
    ("beams", "counts", "expected"),
    [
        (5, [9, 9, 9, 9, 9], [1, 1, 1, 1, 1]),
        (7, [9, 9, 9, 9, 9], [1, 1, 1, 1, 3]),
        (7, [9, 9, 9, 9, 0], [1, 1, 1, 4, 0]),
        (4, [9, 2, 0, 1, 0, 0], [1, 2, 0, 1, 0, 0]),
        (6, [0, 1, 9], [0, 1, 5]),
        (6, [1, 1, 1], [1, 1, 1]),
        (3, [5], [3]),
    ],
)
def test_how_the_beams_are_divided(beams, counts, expected):
    assert divide_beams(beams, counts) == allocate(beams, counts) == expected


def first_difference(terms: Terms) -> int | None:
    """Compare `RequiredTerms` with a search of the whole text, for 150 random texts.

    Returns the index of the first text with a different result, or None.
    """
    chance = random.Random(7)
    whole = Texts(TOKEN_BYTES, terms, [])
    for number in range(150):
        found = RequiredTerms(required(terms), TOKEN_BYTES, [])
        state, tokens = found.start, []
        for token in chance.choices(range(len(TOKEN_BYTES)), k=16):
            if set(found.next_tokens(state)) != whole.next_tokens(tokens):
                return number
            state, tokens = found.after(state, token), [*tokens, token]
            if state.progress != whole.progress(tokens):
                return number
    return None


TRICKY = [AB, BACA, [spell(b" a", b" b")], [spell(b" b", b" a")], [spell(b"-", b"a")], UMLAUT, SPACED]


def test_texts_are_followed_as_if_read_whole():
    assert first_difference(TRICKY) is None


@pytest.mark.parametrize("bug", ["words", "tail"])
def test_a_wrong_reading_is_noticed(monkeypatch, bug):
    """Negative control: if terms inside words count, or too few characters are remembered, the comparison fails."""
    if bug == "words":
        monkeypatch.setattr("server.engine.beams.required_terms.are_joined", lambda before, after: False)
    else:
        after = RequiredTerms._after
        monkeypatch.setattr(
            RequiredTerms, "_after", lambda self, state, data: after(self, state._replace(tail=state.tail[-2:]), data)
        )
    assert first_difference(TRICKY) is not None


def test_terms_of_scripts_without_spaces_stand_inside_a_sentence():
    token_bytes = ["翻译".encode(), "模型".encode(), b"a", "a模型".encode()]
    terms = RequiredTerms([RequiredTerm([("模型", [1])])], token_bytes, [])
    for tokens in ([0, 1, 0], [2, 1], [3]):
        state = terms.start
        for token in tokens:
            state = terms.after(state, token)
        assert state.progress == 1, tokens


def test_terms_without_a_vocabulary_or_beams_are_refused(pairs):
    pair, engine = pairs("t5"), pairs("t5").engine()
    results = run(engine, [generate(pair, 0, [5], terms=required([AB]))])
    assert "beam search" in results.failed[0].message
    engine.models["t5"].generation.grammar_waits = None
    results = run(engine, [generate(pair, 1, [5], num_beams=2, terms=required([AB]))])
    assert "vocabulary" in results.failed[1].message
