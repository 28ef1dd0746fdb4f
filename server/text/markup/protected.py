"""Find the parts of a text that a translation must not change: placeholders, URLs, code, hashtags, emoji.

Each pattern needs characters that ordinary prose does not have in this order. Numbers are not protected, because their
form depends on the language; `numbers_differ` checks them after the translation.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from server.text.markup.protected_patterns import ATTACHED, END, HINT, HINT_CHARACTERS, PATTERNS, START, SYMBOLS
from server.text.windowed_search import search

_PATTERN = "|".join([kind.pattern for kind in PATTERNS])
_NAMED = re.compile("|".join([f"(?P<{kind.name}>{kind.pattern})" for kind in PATTERNS]), re.VERBOSE | re.DOTALL)
"""The same expression with the names of the kinds. A search with it takes four times as long."""
_WORDS = frozenset(kind.name for kind in PATTERNS if kind.is_word)
SYMBOL = re.compile(f"[{SYMBOLS}|¦·]")
"""A character at which a sentence may end (see `markup_sentences`)."""
_TRAILING = ".,;:!?…'\"»”’*،؛؟।॥"
"""Punctuation marks that belong to the sentence, not to the URL before them."""
_ADDRESS = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]+://|[Ww]{3}\.|[Mm]ailto:|[A-Za-z]:\\|tel:|sms:|[\w.-]+\.[a-z]{2,4}[/?])"
)
_IS_ATTACHED = re.compile(f"[{ATTACHED}]")
_PERCENT_FIRST_TEXT = "tr eu ku az ar arz apc acm acq aeb ajp ars ary fa prs ckb ur he yi ps sd ug azb crh zza gag"
PERCENT_FIRST = frozenset(_PERCENT_FIRST_TEXT.split())
"""Languages in which a percent sign is written before its number (%50), always or often; codes as of `Language`."""
_MAX_PLACEHOLDER = 99
"""Largest number of a placeholder of Qt: %1 to %99."""
_PERCENTAGE = re.compile(r"%(?P<number>\d{1,3})[aeiou]?")
"""A protected part that is a percentage if the language writes so; in Basque with an ending (%10a)."""
_CHANGES = r"""
    oran(?:ında|ıyla|la)\b|artış|artt[ıi]|artar|artac|artıyor|artır|artma|azal|düşt|düşüş|düşer|düşür|düşme|yüksel|gerile|büyüdü|büyüme|küçül
    |indirim|faiz|kdv\b|pay[ıi]\b|civarında|daha\s(?:az|çok|fazla|düşük|yüksek|ucuz|pahalı)
    |artıb|artım|azalıb|endirim|nisbətində|(?:igo|jaitsi)\s(?:da|dira|zen|ziren)\b|gehiago\b|gutxiago\b
"""
"""Turkish, Azerbaijani and Basque words after a percentage, such as "rose", "discount" and "interest"."""
_COUNTED = re.compile(
    rf"""%(?<![^\s"'“”„«‘’(\[>،]%)(?P<number>\d{{1,3}})(?![\d%$]|\.\d+[a-zA-Z]|[a-zA-Z](?<![aeiou])(?![a-zA-Z]))
    (?P<is_percentage>[.,]\d|[-–]%?\d|(?:['’]\w{{1,6}}(?:\sbir)?)?\s(?i:{_CHANGES}))?""",
    re.VERBOSE,
)
"""A number after a percent sign, which no format of printf follows.

A decimal number, a range, and a number before one of `_CHANGES` are percentages, and no placeholders.
"""
_NUMBER = re.compile(r"\d+(?:[.,\s'’\u066b\u066c\u00a0\u202f]\d+)*")


class ProtectedPart(NamedTuple):
    """A part of a text that must not change.

    start, end: its range, as character indices. is_word: see `PartPattern`.
    """

    start: int
    end: int
    is_word: bool


@dataclass(frozen=True)
class Protection:
    """Rules for the parts of a text that a translation must not change.

    patterns: whether the patterns of this module (placeholders, URLs, code...) are protected.
    terms: further words or phrases to protect, exactly as they are written.
    max_placeholder: largest number of Qt's placeholders %1 to %99. A larger number after a percent sign is a
        percentage, which is not protected.
    """

    patterns: bool = False
    terms: tuple[str, ...] = ()
    max_placeholder: int = _MAX_PLACEHOLDER

    def in_text(self, text: str, language: str | None) -> Protection:
        """Return the rules for a text in which %50 may be a percentage, as in Turkish.

        Qt numbers the placeholders of a text without gaps: %1, %2, %3. With any other number, all are percentages, as
        they are if a word such as "rose" follows one of them. %1 before any other word cannot be told apart ("%1 of
        the files", "%1 files") and counts as a placeholder, because a program needs it unchanged.

        language: ISO 639 code of the text's language; None if it is not known.
        """
        if not self.patterns or language not in PERCENT_FIRST or "%" not in text:
            return self
        found = list(_COUNTED.finditer(text))
        numbers = {int(match["number"]) for match in found}
        are_placeholders = numbers == set(range(1, len(numbers) + 1)) and not any(
            match["is_percentage"] for match in found
        )
        return replace(self, max_placeholder=len(numbers) if are_placeholders else 0)

    def may_apply(self, text: str) -> bool:
        """Whether a text may have a protected part. A fast test, which is True for each text that has one."""
        return (self.patterns and search(HINT, text, longest=HINT_CHARACTERS) is not None) or any(
            term in text for term in self.terms
        )

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each protected part of a text, as character indices, in order."""
        return ((part.start, part.end) for part in self.parts(text))

    def parts(self, text: str) -> Iterator[ProtectedPart]:
        """Yield the protected parts of a text, in order. A term counts as a word."""
        if not self.may_apply(text):
            return
        at = 0
        while (match := search(self._pattern, text, at)) is not None:
            start, at = match.span()
            if self._is_percentage(match[0]):
                continue
            if _ADDRESS.match(match[0]):
                at = start + len(_trimmed(match[0]))
            if at > start:
                yield ProtectedPart(start, at, match[0] in self.terms or _is_word(match[0]))
            else:
                at = match.end() + (match.end() == start)

    def _is_percentage(self, part: str) -> bool:
        """Whether a part that matches the pattern of a placeholder is a percentage in this text."""
        if self.max_placeholder == _MAX_PLACEHOLDER:
            return False
        percentage = _PERCENTAGE.fullmatch(part)
        return percentage is not None and int(percentage["number"]) > self.max_placeholder

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        terms = [
            ("" if _IS_ATTACHED.match(term) else START)
            + re.escape(term)
            + ("" if _IS_ATTACHED.match(term[-1:]) else END)
            for term in sorted(self.terms, key=len, reverse=True)
        ]
        known = [_PATTERN] if self.patterns else []
        spelled = [term.replace(" ", r"\ ") if "\\ " not in term else term for term in terms]
        return re.compile("|".join([*spelled, *known]), re.VERBOSE | re.DOTALL)


NO_PROTECTION = Protection()


@lru_cache(maxsize=512)
def _is_word(part: str) -> bool:
    """Whether a part that a pattern has found counts as a word. Results are cached, because parts often occur again."""
    kind = _NAMED.match(part)
    return kind is None or kind.lastgroup in _WORDS


def numbers_differ(source: str, translation: str) -> bool:
    """Whether two texts contain different numbers, in any order.

    Separators and the script of the digits are ignored, so that 3.5 equals 3,5.
    """
    return _numbers(source) != _numbers(translation)


def _numbers(text: str) -> list[str]:
    """The digits of each number of a text, sorted."""
    return sorted(
        "".join([str(unicodedata.decimal(digit)) for digit in number[0] if digit.isdecimal()])
        for number in _NUMBER.finditer(text)
    )


def _trimmed(address: str) -> str:
    """Return a URL without the punctuation of the sentence at its end, such as a full stop or an unpaired bracket."""
    while address:
        shorter = address.rstrip(_TRAILING)
        for opening, closing in ("()", "[]"):
            if shorter.endswith(closing) and shorter.count(opening) < shorter.count(closing):
                shorter = shorter[:-1]
        if shorter == address:
            break
        address = shorter
    return address
