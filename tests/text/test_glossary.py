"""Terms of a glossary: where they occur in a source text, and the tokens that spell them."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from server.text.languages.glossary import DuplicateTerm, Glossary, fewest_tokens, normalized, spell
from server.text.tokenizers.load import load_tokenizer
from server.text.tokens.token_bytes import TokenBytes
from server.word_bounds import are_joined, spellings
from tests.text import checkpoints

DEMO = Path(__file__).parents[2] / "weights" / "demo" / "translator-en-fr"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The house is red.", ["maison"]),
        ("House of cards", ["maison"]),
        ("HOUSE", []),
        ("a household, greenhouse", []),
        ("house", ["maison"]),
        ("(house)-house's", ["maison"]),
        ("house_1", []),
        ("The White\n House is a house.", ["Maison-Blanche", "maison"]),
        ("The White House", ["Maison-Blanche"]),
        ("White Houses, the white house", ["maison"]),
        ("US and us", ["États-Unis"]),
        ("give us", []),
        ("May I? It may rain in May.", ["mai", "pouvoir"]),
        ("un cafe\u0301 noir", ["coffee"]),
        ("les cafe\u0301s, la cafétéria", []),
        ("我们翻译模型的书", ["translation model"]),
        ("翻译和模型", ["translation"]),
        ("C++ and C", ["C plus plus"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_where_terms_are_found(text: str, found: list[str]) -> None:
    glossary = Glossary(
        {
            "house": "maison",
            "White House": "Maison-Blanche",
            "US": "États-Unis",
            "may": "pouvoir",
            "May": "mai",
            " café ": "coffee",
            "翻译": "translation",
            "翻译模型": "translation model",
            "C++": "C plus plus",
        }
    )
    assert glossary.targets_for(text) == found


def test_terms_that_differ_in_white_space_alone() -> None:
    with pytest.raises(DuplicateTerm):
        Glossary({"old  house": "a", "old house": "b"})


def test_one_translation_of_two_terms_is_needed_once() -> None:
    assert Glossary({"car": "voiture", "auto": "voiture"}).targets_for("A car, an auto, a car.") == ["voiture"]


@pytest.mark.parametrize("write", [checkpoints.write_marian, checkpoints.write_nllb, checkpoints.write_t5, None])
def test_spellings_are_the_bytes_of_the_term(tmp_path: Path, write) -> None:
    """The tokens of every spelling give the bytes of the term, with or without a space before it."""
    if write is not None:
        write(tmp_path)
    tokenizer = load_tokenizer(DEMO if write is None else tmp_path)
    by_id = tokenizer.token_bytes.by_id
    spelled = 0
    for term in ("the sailor", "old", "maison", "sees the"):
        for text, ids in spell(tokenizer, tokenizer.token_bytes, term):
            data = b"".join(by_id[token] for token in ids)
            assert data.removeprefix(b" ").decode() == text and text.lower() == term
            spelled += 1
    assert spelled >= 2


def test_a_term_that_the_vocabulary_cannot_spell() -> None:
    tokenizer = load_tokenizer(DEMO)
    assert spell(tokenizer, tokenizer.token_bytes, "翻译") == []


def test_fewest_tokens_against_every_division() -> None:
    pieces = [b"", b" a", b"a", b"b", b"ab", b"ba", b" ", b"aba"]
    token_bytes = TokenBytes(tuple(pieces), opens_with_space=True)

    def counts(data: bytes) -> list[int]:
        return [0] if not data else [1 + n for p in pieces[1:] if data.startswith(p) for n in counts(data[len(p) :])]

    for data in (b" ab", b"abab", b" aababa", b"bbbb", b"abaab"):
        found = fewest_tokens(token_bytes, data)
        assert b"".join(pieces[token] for token in found) == data
        assert len(found) == min(counts(data))
    assert fewest_tokens(token_bytes, b"abc") == ()


def test_a_long_text_of_a_script_without_spaces_takes_few_steps() -> None:
    """All terms are searched together, in at most as many steps per position as the longest term has characters."""
    terms = {"的" * 40 + mark: "x" for mark in "一二三四五六七八九十"}
    assert Glossary(terms).targets_for("的" * 20_000) == []


def test_memory_of_long_terms() -> None:
    """Long terms must take little memory. With a node for each character, these 1,000 terms would need 23 MiB."""
    chosen = random.Random(0)
    entries = {"".join(chosen.choices("abcdefgh", k=64)): "x" for _ in range(1000)}
    tracemalloc.start()
    try:
        Glossary(entries)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_terms_are_found_as_by_trying_each() -> None:
    chosen = random.Random(0)
    for _ in range(300):
        terms = {"".join(chosen.choices("ab 中-", k=chosen.randint(1, 4))) for _ in range(8)}
        terms = {term for term in terms if term == normalized(term)}
        text = normalized("".join(chosen.choices("abA 中-", k=20)))
        expected, place = [], 0
        while place < len(text):
            fits = [
                term
                for term in terms
                if any(text.startswith(spelling, place) for spelling in spellings(term))
                and not (place and are_joined(text[place - 1], text[place]))
                and not are_joined(text[place + len(term) - 1], text[place + len(term) :][:1] or " ")
            ]
            as_written = [term for term in fits if text.startswith(term, place)]
            longest = max(map(len, fits), default=0)
            best = next((term for term in [*as_written, *fits] if len(term) == longest), None)
            expected += [best] if best else []
            place += longest or 1
        assert Glossary({term: term for term in terms}).targets_for(text) == list(dict.fromkeys(expected))
