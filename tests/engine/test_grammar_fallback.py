"""If a grammar becomes too complex, the answer continues with the fallback of its section. Without one, it fails."""

from __future__ import annotations

import re

import pytest
from llguidance import LLParserLimits

from server.engine.grammars import grammar_masks
from server.ipc.wire.generate_messages import Vocabulary
from server.ipc.wire.sections import AnswerSection, Marker
from tests.engine.grammars import END, TOKENS, choice_grammar, random_engine, random_request, regex_grammar
from tests.engine.harness import run

COMPLEX, LOOSE = regex_grammar("(a|b)*a(a|b){20}!"), regex_grammar("[ab]+[!?]")


def text_of(tokens: list[int]) -> str:
    return b"".join(TOKENS[token] for token in tokens if token < len(TOKENS)).decode()


@pytest.fixture
def few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_masks, "LIMITS", LLParserLimits(max_lexer_states=200, verbose_errors=False))


BIAS = {TOKENS.index(b"!"): -4.0, TOKENS.index(b"?"): -4.0}


@pytest.mark.usefixtures("few_states")
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3, "do_sample": False}], ids=["sampled", "beams"])
def test_a_grammar_that_grows_too_complex_is_replaced(settings: dict) -> None:
    sections = [AnswerSection(grammar=COMPLEX, fallback=LOOSE)]
    requests = [
        random_request(i, "", sections=sections, max_new_tokens=300, logit_bias=BIAS, **settings) for i in range(3)
    ]
    results = run(random_engine(), requests)
    assert not results.failed
    texts = [text_of(hypothesis.token_ids) for i in range(3) for hypothesis in results.finished[i].hypotheses]
    assert all(re.fullmatch("[ab]+[!?]?", text) for text in texts)
    assert any("?" in text or len(text) == 300 for text in texts), "the grammar did not grow too complex"


@pytest.mark.usefixtures("few_states")
@pytest.mark.parametrize("marker", ["<c>", "<c"])
def test_the_text_of_a_later_section_is_read_again(marker: str) -> None:
    """The fallback reads the section's text from its start, even if the same token contains the end of the marker."""
    rest = ">" if marker == "<c" else ""
    complex_one, loose = regex_grammar(f"{rest}(a|b)*a(a|b){{20}}!"), regex_grammar(f"{rest}[ab]+[!?]")
    sections = [AnswerSection([Marker(1, marker)]), AnswerSection(grammar=complex_one, fallback=loose)]
    engine = random_engine()
    engine.set_vocabulary(Vocabulary("random", [*TOKENS, b"<c>ab"]))
    bias = {**BIAS, len(TOKENS): 30.0}
    request = random_request(0, "", sections=sections, max_new_tokens=300, logit_bias=bias)
    results = run(engine, [request])
    assert not results.failed
    (hypothesis,) = results.finished[0].hypotheses
    text = "".join("<c>ab" if token == len(TOKENS) else text_of([token]) for token in hypothesis.token_ids)
    assert re.fullmatch("<c>[ab]{40,}[!?]?", text[text.index("<c>") :])


def test_a_grammar_that_the_vocabulary_cannot_spell_is_replaced() -> None:
    engine = random_engine()
    engine.set_vocabulary(Vocabulary("random", [b"", b"", b"", b"a", b"b"]))
    sections = [AnswerSection(grammar=choice_grammar(["abc"]), fallback=regex_grammar("[abc]{3}"))]
    results = run(engine, [random_request(0, "", sections=sections), random_request(1, choice_grammar(["abc"]))])
    assert list(results.failed) == [1]
    (text,) = results.texts(0)
    assert text[:2] == [3, 4] and len(text) == 4 and text[3] == END


@pytest.mark.usefixtures("few_states")
def test_a_fallback_may_fail_too() -> None:
    complex_one = regex_grammar("(a|b)*a(a|b){20}")
    sections = [AnswerSection(grammar=complex_one, fallback=complex_one)]
    results = run(random_engine(), [random_request(0, "", sections=sections, suppress_token_ids=[END])])
    assert results.failed[0].code == "invalid_format" and "too complex" in results.failed[0].message
