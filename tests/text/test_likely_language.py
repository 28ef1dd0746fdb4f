"""The language of a text is guessed from its words, only if they leave no doubt."""

from __future__ import annotations

import pytest

from server.text.languages.likely_language import likely_language


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It was in the garden that we saw you.", "en"),
        ("Der Hund ist nicht mit dem Kind in dem Haus.", "de"),
        ("Il est dans le jardin et nous ne sommes pas là.", "fr"),
        ("Ella no está en la casa, pero yo lo vi por la calle.", "es"),
        ("Hän ei ole se, mutta minä en tiedä että ne ovat täällä.", "fi"),
        ("Πού πας; Στο σπίτι.", "el"),
        ("「うん。」彼は笑った。", "ja"),
        ("The Greek word Αθήνα is in the name of the city.", "en"),
        ("", ""),
        ("42", ""),
        ("Yes.", ""),
        ("Og den er ikke til det.", ""),  # Danish or Norwegian
        ("Težina maks. Dopuštena je velika.", ""),  # Croatian, which has no list of words
        ("Örn. Elma al. İyidir.", ""),
        ("他看了书。", ""),
    ],
)
def test_a_guess_or_none(text: str, expected: str) -> None:
    assert likely_language(text) == expected


def test_long_texts_are_read_at_their_beginning() -> None:
    assert (
        likely_language("This is the house that we have. " * 100 + "Il est dans le jardin et ne dort pas. " * 1000)
        == "en"
    )
