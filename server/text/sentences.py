"""A text cut into sentences that can be joined again: nothing of it is lost, and white space stays where it was.

Language-neutral, by punctuation alone: a full stop ends a sentence where white space and no small letter follow,
unless it belongs to an abbreviation, an initial or an ordinal; the full stops of Chinese and Japanese end one at once;
a line break always does. Two sentences taken for one cost little, one cut in two costs its meaning: doubt does not cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
_LAST_WORD = re.compile(r"(?:^|[^\w.])([\w.]*)$")
_OPENING = "\"'“‘«‹([{„¿¡ —–-"
_WORD_REACH = 24

_ABBREVIATIONS = """
mr mrs ms mx dr prof rev hon gen col maj capt lt sgt sen rep gov pres st mt ft fr sr jr messrs mme mlle mm sra srta
dra fig figs eq sec ch vol nr nos abs bd hr frl dipl ing jh pp cf vs v ca approx est z.b d.h u.a o.ä bzw e.g i.e viz
resp p.ex c.-à-d t.ex ej p.ej jan feb mar apr jun jul aug sep sept oct nov dec av bld blvd rd
"""
_BEFORE_A_NAME = frozenset(_ABBREVIATIONS.split())
"""Abbreviations that more of the sentence follows, even with a capital letter."""


@dataclass(frozen=True)
class Sentence:
    """text: without white space around it; empty where a text begins with white space. separator: what follows it."""

    text: str
    separator: str


def split_sentences(text: str) -> list[Sentence]:
    """The sentences of a text, in order. `join_sentences` of their texts gives back `text` exactly."""
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


def join_sentences(texts: Sequence[str], sentences: Sequence[Sentence]) -> str:
    """`texts`, one for each sentence (a translation of it), with the white space of the original between them."""
    return "".join(text + sentence.separator for text, sentence in zip(texts, sentences, strict=True))


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    following = text[match.end() : match.end() + _WORD_REACH].lstrip(_OPENING)
    if "\n" in match["space"]:
        return True
    if following[:1].islower():
        return False
    if match[0].rstrip() != ".":
        return True
    before = _LAST_WORD.search(text[max(match.start() - _WORD_REACH, 0) : match.start()])
    word = before[1] if before else ""
    if word.isdecimal():
        return len(word) > 2  # an ordinal, or the number of a list's entry
    is_initial = len(word) == 1 and word.isupper()
    return not is_initial and word.lower() not in _BEFORE_A_NAME
