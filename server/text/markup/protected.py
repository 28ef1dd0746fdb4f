"""Find the parts of a text that no translation may change: placeholders, addresses, code, tags of chats, emoji.

Each pattern is unmistakable: it needs characters that prose does not have in this order. Numbers are not protected,
because their form depends on the language; see `numbers_differ`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_SYMBOLS = "\u00a9\u00ae\u2122\u2190-\u2211\u2217-\u23ff\u2440-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
"""Arrows, mathematical and technical signs, dingbats, emoji and flags; not the minus sign."""
_PATTERN = re.compile(
    rf"""
    ```.{{1,4000}}?``` | ``[^`\n]{{1,400}}`` | `[^`\n]{{1,400}}`                       # code
    | (?:https?|ftps?|file|wss?)://[^\s<>"'`{{}}|\\^]+ | \bmailto:[^\s<>"'`]+           # addresses
    | (?<![\w@.])www\.[\w-]+\.[^\s<>"'`{{}}|\\^]+
    | (?<![\w.+%-])[\w.+%-]{{1,64}}@(?:[\w-]{{1,63}}\.){{1,8}}[^\W\d_]{{2,24}}\b
    | \{{\{{[^{{}}\n]{{0,80}}\}}\}} | [$\#%]\{{[^{{}}\n]{{1,80}}\}} | \{{%[^{{}}\n]{{1,80}}%\}}  # templates
    | \{{(?:[^\W\d]\w*|\d{{1,3}})?(?:[.\[][\w.\[\]]{{0,60}})?(?:![rsa])?(?::[^{{}}\s]{{0,20}})?\}}
    | \$\w{{1,60}}\$ | (?<![\w%$])%[^\W\d]\w{{1,60}}%(?![%\w])
    | (?<![\w%])%(?:\d{{1,2}}\$|\(\w{{1,60}}\))?[-+\#0]{{0,4}}(?:\d{{1,3}}|\*)?(?:\.\d{{1,3}})?
      (?:hh|h|ll|l|L|q|j|z|t)?[sdiufFeEgGxXoscpa@](?![^\W_])
    | </?\d{{1,4}}\s?/?> | <[^\W\d_][\w-]*\sid=["']?\d+["']?\s?/?>                       # numbered tags
    | (?<![\w&\#/.])[\#@][^\W\d]\w{{0,60}}                                              # hashtags, mentions
    | (?:[\d\#*]\ufe0f?\u20e3 | [{_SYMBOLS}][{_SYMBOLS}\ufe0e\ufe0f\u200d\u20e3\U000e0020-\U000e007f]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_HINT = re.compile(rf"[`{{@\#%$<{_SYMBOLS}\u20e3]|://|www\.|mailto:")
"""Each protected part has one of these, so most texts are decided by one fast search."""
_TRAILING = ".,;:!?…'\"»”’"
"""Marks at the end of an address that belong to the sentence."""
_ADDRESS = re.compile(r"(?:[a-z]+://|www\.|mailto:)")
_NUMBER = re.compile(r"\d+(?:[.,\s'’\u066b\u066c\u00a0\u202f]\d+)*")


@dataclass(frozen=True)
class Protection:
    """What is protected.

    patterns: the parts that this module knows.
    terms: further words or phrases, as they are written.
    """

    patterns: bool = False
    terms: tuple[str, ...] = ()

    def may_apply(self, text: str) -> bool:
        """Whether a text may have a protected part. Fast, and true for each text that has one."""
        return (self.patterns and _HINT.search(text) is not None) or any(term in text for term in self.terms)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """(start, end) of each protected part, in order."""
        if not self.may_apply(text):
            return
        at = 0
        while (match := self._pattern.search(text, at)) is not None:
            start, at = match.span()
            if _ADDRESS.match(match[0]):
                at = start + len(_trimmed(match[0]))
            if at > start:
                yield start, at
            else:
                at = match.end() + (match.end() == start)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        terms = [rf"(?<!\w){re.escape(term)}(?!\w)" for term in sorted(self.terms, key=len, reverse=True)]
        known = [_PATTERN.pattern] if self.patterns else []
        spelled = [term.replace(" ", r"\ ") if "\\ " not in term else term for term in terms]
        return re.compile("|".join([*spelled, *known]), re.VERBOSE | re.DOTALL)


NO_PROTECTION = Protection()


def numbers_differ(source: str, translation: str) -> bool:
    """Whether two texts have other numbers. Separators and the digits of a script do not count: 3.5 equals 3,5."""
    return _numbers(source) != _numbers(translation)


def _numbers(text: str) -> Counter[str]:
    return Counter(
        "".join([str(unicodedata.decimal(digit)) for digit in number[0] if digit.isdecimal()])
        for number in _NUMBER.finditer(text)
    )


def _trimmed(address: str) -> str:
    """An address without the marks of the sentence at its end, such as a full stop or an unpaired bracket."""
    while address:
        shorter = address.rstrip(_TRAILING)
        if shorter.endswith(")") and shorter.count("(") < shorter.count(")"):
            shorter = shorter[:-1]
        if shorter == address:
            break
        address = shorter
    return address
