"""Join the tokens of a transcript into words.

Same results as `_combine_tokens_into_words` of transformers 5 for Whisper. Source: the code published with Radford et
al. 2022, arXiv:2212.04356 (`tokenizer.py`, `timing.py`).
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from server.text.tokens.tokenizer import Tokenizer

LANGUAGES_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages without spaces between words. A word is the shortest run of tokens that is valid UTF-8."""
_OPENING = "\"'“¡¿([{-"
_CLOSING = "\"'.。,，!！?？:：”)]}、"
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Word:
    """One word of a transcript.

    text: the word, with the space before it. first, end: range [first, end) of its tokens.
    """

    text: str
    first: int
    end: int


def split_words(tokenizer: Tokenizer, token_ids: Sequence[int], language: str | None, end_id: int) -> list[Word]:
    """Group the tokens of a text into words, each with the punctuation that belongs to it.

    token_ids: text tokens, without timestamps.
    language: code of the language; None is treated as a language with spaces.
    end_id: id of the end-of-text token. It and all higher ids are special tokens.
    """
    parts = _characters(tokenizer, token_ids)
    if language not in LANGUAGES_WITHOUT_SPACES:
        parts = _join_at_spaces(parts, [token >= end_id for token in token_ids])
    return _with_punctuation(parts)


def _characters(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[Word]:
    """Group tokens into the shortest runs whose bytes are complete characters."""
    whole = tokenizer.decode(token_ids, skip_special_tokens=False)
    found: list[Word] = []
    first = characters = 0
    for end in range(1, len(token_ids) + 1):
        text = tokenizer.decode(token_ids[first:end], skip_special_tokens=False)
        # A replacement character that is also in the whole text comes from bytes that no later token completes.
        broken = characters + text.index(_REPLACEMENT) if _REPLACEMENT in text else None
        if broken is None or broken >= len(whole) or whole[broken] == _REPLACEMENT:
            found.append(Word(text, first, end))
            first, characters = end, characters + len(text)
    return found


def _join_at_spaces(parts: Sequence[Word], is_special: Sequence[bool]) -> list[Word]:
    """Join each part to the one before it, unless it begins with a space, is punctuation, or is a special token.

    is_special: whether each token is a special token.
    """
    words: list[Word] = []
    for part in parts:
        begins = part.text.startswith(" ") or part.text.strip() in string.punctuation or is_special[part.first]
        if begins or not words:
            words.append(part)
        else:
            words[-1] = _joined(words[-1], part)
    return words


def _with_punctuation(words: Sequence[Word]) -> list[Word]:
    """Join opening punctuation to the word after it and closing punctuation to the word before it."""
    opened: list[Word] = []
    for word in reversed(words):
        if opened and word.text.startswith(" ") and word.text.strip() in _OPENING:
            opened[-1] = _joined(word, opened[-1])
        else:
            opened.append(word)
    closed: list[Word] = []
    for word in reversed(opened):
        if closed and not closed[-1].text.endswith(" ") and word.text in _CLOSING:
            closed[-1] = _joined(closed[-1], word)
        else:
            closed.append(word)
    return [word for word in closed if word.text]


def _joined(one: Word, other: Word) -> Word:
    return Word(one.text + other.text, one.first, other.end)
