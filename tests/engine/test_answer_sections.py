"""Answers in sections: masks equal those found by trying every token, and text before a marker is not changed."""

from __future__ import annotations

import random

import pytest

from server.engine.grammars.grammar_masks import GrammarMasks
from server.engine.sequences.grammar_state import GrammarState
from server.ipc.wire.sections import AnswerSection, Marker
from tests.engine.grammars import END, TOKENS, VOCAB, choice_grammar, compute_masks, random_engine, random_request
from tests.engine.harness import run

SPECIAL = 2
WORDS = ["ab", "a<c>"]
"""The possible texts of the last section."""
PIECES = [b"", b"", b"", *b"< c > a b x <c >a c>a x<c> <c> <c>ab <c>x".split(), b" "]
PLANS = {
    "anywhere": [AnswerSection([Marker(1, "<c>")]), AnswerSection(grammar=choice_grammar(WORDS))],
    "at the start": [AnswerSection([Marker(1, "<c>", at_start=True)]), AnswerSection(grammar=choice_grammar(WORDS))],
    "special token": [AnswerSection([Marker(1, token_id=SPECIAL)]), AnswerSection(grammar=choice_grammar(WORDS))],
    "no end before the marker": [
        AnswerSection([Marker(1, "<c>")], may_end=False),
        AnswerSection(grammar=choice_grammar(WORDS)),
    ],
    "through a free section": [
        AnswerSection([Marker(1, "<c>", at_start=True)]),
        AnswerSection([Marker(2, ">a")]),
        AnswerSection(grammar=choice_grammar(["b", "x"])),
    ],
}


def rest_after(tokens: list[int], name: str) -> tuple[str, bool]:
    """The text in the last section, and whether the answer reached this section.

    Found independently of the engine, by searching the whole text. name: key of `PLANS`.
    """
    if name == "special token":
        if SPECIAL not in tokens:
            return "", False
        place = tokens.index(SPECIAL)
        return "".join(PIECES[token].decode() for token in tokens[place + 1 :]), True
    text = "".join(PIECES[token].decode() for token in tokens)
    if name == "through a free section":
        stripped = text.lstrip(" ")
        if not stripped.replace(" ", "").startswith("<c>"):
            return "", False
        first = next(end for end in range(len(text) + 1) if text[:end].replace(" ", "") == "<c>")
        _, found, rest = text[first:].partition(">a")
        return (rest, True) if found else ("", False)
    if name == "at the start":
        ends = [end for end in range(len(text) + 1) if text[:end].replace(" ", "") == "<c>"]
        return (text[ends[0] :], True) if ends else ("", False)
    _, found, rest = text.partition("<c>")
    return (rest, True) if found else ("", False)


@pytest.mark.parametrize("name", PLANS)
def test_the_mask_allows_exactly_the_tokens_that_keep_the_answer_valid(name: str) -> None:
    words = ["b", "x"] if name == "through a free section" else WORDS
    masks = GrammarMasks(PIECES, len(PIECES))
    chooser = random.Random(name)
    entered_once = False
    for _ in range(60):
        state, tokens = GrammarState(PLANS[name], 0), []
        for _ in range(9):
            compute_masks(masks, state, tokens, [END], [])
            bits = state.bits
            allowed = {i for i in range(len(PIECES)) if bits is None or bits[i // 32] >> (i % 32) & 1}
            rest, entered = rest_after(tokens, name)
            entered_once |= entered
            fitting = set()
            for token in range(len(PIECES)):
                if token == END:
                    may_end = rest in words if entered else name != "no end before the marker"
                    fitting |= {END} if may_end else set()
                    continue
                new_rest, new_entered = rest_after([*tokens, token], name)
                fits = any(word.startswith(new_rest) for word in words) and bool(PIECES[token] or not entered)
                if fits or not new_entered:
                    fitting.add(token)
            assert allowed == fitting, (tokens, sorted(allowed ^ fitting))
            choices = sorted(fitting - {END})
            if not choices:
                break
            tokens.append(chooser.choice(choices))
    assert entered_once, "no answer reached the last section"


def test_text_before_a_marker_is_that_of_a_request_without_sections() -> None:
    """An answer that never begins a marker equals that of a request without sections.

    After a possible beginning of a marker, some tokens are banned, so the answer may differ from there on.
    """
    sections = [AnswerSection([Marker(1, '}"')]), AnswerSection(grammar=choice_grammar(['a": 1}']))]
    plain = run(random_engine(), [random_request(i, "", max_new_tokens=60) for i in range(30)])
    results = run(random_engine(), [random_request(i, "", sections=sections, max_new_tokens=60) for i in range(30)])
    begun = unchanged = 0
    for i in range(30):
        own, other = text_of(results.texts(i)[0]), text_of(plain.texts(i)[0])
        if b"}" not in other:
            assert results.texts(i) == plain.texts(i)
            unchanged += 1
        elif b'}"' in own:
            begun += 1
            is_cut = results.finished[i].hypotheses[0].finish_reason == "length"
            assert own.partition(b'}"')[2] == b'a": 1}' or is_cut
    assert begun and unchanged


def text_of(tokens: list[int]) -> bytes:
    return b"".join(TOKENS[token] for token in tokens if token < len(TOKENS))


@pytest.mark.parametrize("beams", [1, 3])
def test_beams_follow_their_own_sections(beams: int) -> None:
    sections = [AnswerSection([Marker(1, "[")]), AnswerSection(grammar=choice_grammar(["1]", "23]"]))]
    settings = {"do_sample": False, "num_beams": beams, "num_return_sequences": beams, "max_new_tokens": 40}
    bias = {TOKENS.index(b"["): 6.0}
    results = run(
        random_engine(), [random_request(i, "", sections=sections, logit_bias=bias, **settings) for i in range(8)]
    )
    called = 0
    for i in range(8):
        for hypothesis in results.finished[i].hypotheses:
            text = b"".join(TOKENS[token] if token < len(TOKENS) else b"" for token in hypothesis.token_ids)
            if b"[" in text and hypothesis.finish_reason == "stop":
                called += 1
                assert text.partition(b"[")[2] in (b"1]", b"23]")
    assert called


def test_a_plain_section_costs_no_mask() -> None:
    """Before a marker, all tokens are allowed, and no mask is computed."""
    masks = GrammarMasks(TOKENS, VOCAB)
    state = GrammarState([AnswerSection([Marker(1, "<call>")]), AnswerSection(grammar=choice_grammar(["a"]))], 0)
    compute_masks(masks, state, [TOKENS.index(b"the"[:1]), TOKENS.index(b"<")], [END], [])
    assert state.bits is None and state.accepts and state.matcher is None
