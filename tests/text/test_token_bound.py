"""Upper bounds for the number of tokens of a text, and the joining of two tokenized texts, for all tokenizers."""

from __future__ import annotations

import random
import unicodedata

import pytest

from server.operations.cost import most_tokens
from server.text.tokens.pairs import PairTemplate, lengths_in
from server.text.tokens.token_bound import LONGEST_CHARACTER
from server.text.tokens.tokenizer import Tokenizer
from server.text.tokens.truncation import truncate

CHARACTERS = "ab. !'1\n é\u1f82가中😀㌀\ufdfa\ufdfb\u0130ﬃ\U0001d160"


def texts(count: int = 120) -> list[str]:
    draw = random.Random(3)
    return [character * 20 for character in CHARACTERS] + [
        "".join(draw.choices(CHARACTERS, k=draw.randint(0, 40))) for _ in range(count)
    ]


def test_no_text_has_more_tokens_than_its_bound(tokenizer: Tokenizer) -> None:
    for text in texts():
        (encoding,) = tokenizer.encode([text], offsets=False)
        assert len(encoding.ids) <= most_tokens(tokenizer, text), ascii(text)


def test_ordinary_text_has_a_close_bound(tokenizer: Tokenizer) -> None:
    """The bound for ordinary text is at most one token per character, so that no text of legal length is refused."""
    assert tokenizer.token_bound("word " * 100) <= 500


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_growth_of_characters(form: str) -> None:
    """No character grows more than `token_bound._GROWTH` says when it is normalised, except for the longest one."""
    from server.text.tokens.token_bound import _GROWTH

    grown = [
        unicodedata.normalize(form, chr(code))
        for code in range(0x80, 0x30000)
        if not 0xD800 <= code <= 0xDFFF and chr(code) != LONGEST_CHARACTER
    ]
    characters, size = _GROWTH[form]
    assert max(map(len, grown)) <= characters and max(len(text.encode()) for text in grown) <= size


def test_joined_pairs_equal_the_tokenizer(tokenizer: Tokenizer) -> None:
    template = PairTemplate.of(tokenizer)
    found = texts(60)
    alone = [encoding.ids for encoding in tokenizer.encode(found, add_special_tokens=False, offsets=False)]
    seconds = [*found[1:], found[0]]
    pairs = tokenizer.encode(found, pairs=seconds, offsets=False)
    for place, pair in enumerate(pairs):
        joined = template.join(alone[place], alone[(place + 1) % len(alone)])
        assert (joined.ids, joined.type_ids, joined.special) == (pair.ids, pair.type_ids, pair.special)


def test_shortened_pairs_keep_the_same_tokens() -> None:
    """`lengths_in` keeps as many tokens of each text as `truncate`."""
    template = PairTemplate(((1, 0),), ((2, 0),), ((2, 1),), (0, 1))
    for first in range(0, 12):
        for second in range(0, 12):
            for room in range(0, 14):
                cut = truncate(template.join([10] * first, [20] * second), room + 3, "right")
                assert lengths_in(room, first, second) == (cut.ids.count(10), cut.ids.count(20))
