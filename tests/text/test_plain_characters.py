"""Typographic characters that a tokenizer does not know are read as the plain ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from server.text.checkpoint_text import load
from server.text.tokens.plain_characters import plain_characters
from weights.demo.train.training import HOME


def knowing(known: str, unknown: int | None = 0) -> Any:
    """A tokenizer with the token 0 for each character that is not in `known`."""

    def encode(texts: list[str], **_: bool) -> list[Any]:
        return [SimpleNamespace(ids=[1, *(5 if character in known else 0 for character in text)]) for text in texts]

    return SimpleNamespace(special=SimpleNamespace(unk=unknown), encode=encode)


def test_only_unknown_characters_are_replaced_and_only_by_known_ones():
    assert plain_characters(knowing("'")) == {ord(character): "'" for character in "‘’‚‛´`ʼ′‹›"}
    assert "“It’s” – x".translate(plain_characters(knowing("'\"-“”"))) == "“It's” - x"
    assert plain_characters(knowing("")) == plain_characters(knowing("'", unknown=None)) == {}


def test_the_length_of_a_text_stays():
    assert all(len(plain) == 1 for plain in plain_characters(knowing("'\"-.")).values())


@pytest.mark.parametrize("typographic", ["The dog’s house is old.", "The well‑known dog’s house"])
def test_the_demo_translator_knows_no_unknown_token_afterwards(typographic: str):
    text = load("translator", HOME / "translator-en-fr")
    (before, after) = (
        encoding.ids
        for encoding in text.tokenizer.encode(
            [typographic, typographic.translate(text.plain_characters)], offsets=False
        )
    )
    assert text.tokenizer.special.unk in before and text.tokenizer.special.unk not in after
