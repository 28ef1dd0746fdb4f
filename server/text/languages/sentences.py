"""Split a text into sentences.

The rules use punctuation only, so that they work for all languages:
- A line break ends a sentence.
- A full stop ends a sentence when white space and no lower-case letter follow. It does not after an abbreviation, an
  initial or an ordinal number.
- The full stops of Chinese and Japanese end a sentence without white space.
In doubt a text is not split: translating half a sentence is worse than translating two sentences together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CLOSING = r"""["'”’»›)\]」』）】〉》]"""
_BOUNDARY = re.compile(
    rf"""
    (?P<line>(?<!\s)[^\S\n]*+\n\s*+)
    | (?<![.!?…؟۔।॥።]) [.!?…؟۔।॥።]++ {_CLOSING}*+ (?P<space>\s++)
    | (?<![。！？｡]) [。！？｡]++ {_CLOSING}*+ (?P<none>\s*+)
    """,
    re.VERBOSE,
)
SENTENCE_ENDS = "\n.!?…؟۔।॥。！？｡"
"""Every sentence except the last one contains at least one of these characters."""
_LAST_WORD = re.compile(r"(?:^|[^\w.])([\w.]*)$")
_OPENING = "\"'“‘«‹([{„¿¡ —–-"
_MAX_WORD_CHARACTERS = 24

_ABBREVIATIONS = """
mr mrs ms mx dr prof rev hon gen col maj capt lt sgt sen rep gov pres st mt ft fr sr jr messrs mme mlle mm sra srta
dra fig figs eq sec ch vol nr nos abs bd hr frl dipl ing jh pp cf vs v ca approx est z.b d.h u.a o.ä bzw e.g i.e viz
resp p.ex c.-à-d t.ex ej p.ej jan feb mar apr jun jul aug sep sept oct nov dec av bld blvd rd
"""
_INNER_ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
"""Abbreviations that do not end a sentence, even before a capital letter."""


@dataclass(frozen=True)
class Sentence:
    """A sentence of a text.

    text: the sentence without white space around it. Empty for the first item of a text that begins with white space.
    separator: white space that follows it.
    """

    text: str
    separator: str


def split_sentences(text: str) -> list[Sentence]:
    """The sentences of a text, in order. Their texts and separators, joined, are the text."""
    sentences = []
    start = 0
    leading = len(text) - len(text.lstrip())
    if leading:
        sentences.append(Sentence("", text[:leading]))
        start = leading
    at = start
    while (match := _BOUNDARY.search(text, at)) is not None:
        at = match.end()
        separator = match[match.lastgroup] if match.lastgroup else ""
        if match.lastgroup == "space" and not _ends_sentence(text, match):
            continue
        end = match.end() - len(separator)
        if end > start:
            sentences.append(Sentence(text[start:end], separator))
            start = match.end()
    if start < len(text):
        rest = text[start:].rstrip()
        sentences.append(Sentence(rest, text[start + len(rest) :]))
    return sentences


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Whether punctuation and white space, matched by `_BOUNDARY`, end a sentence."""
    following = text[match.end() : match.end() + _MAX_WORD_CHARACTERS].lstrip(_OPENING)
    if "\n" in match["space"]:
        return True
    if following[:1].islower():
        return False
    if match[0].rstrip() != ".":
        return True
    before = _LAST_WORD.search(text[max(match.start() - _MAX_WORD_CHARACTERS, 0) : match.start()])
    word = before[1] if before else ""
    if word.isdecimal():
        return len(word) > 2  # shorter numbers are ordinals or numbers of list items
    is_initial = len(word) == 1 and word.isupper()
    return not is_initial and word.lower() not in _INNER_ABBREVIATIONS
