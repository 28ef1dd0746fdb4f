"""Templates: `[a|b]` is a choice, `{slot}` is filled in; "a", "an" and capitals are corrected at the end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

from weights.demo.train.grammar import english

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa])n? (?=(\w+))")
_START = re.compile(r'(?:^|[.!?] |[.]" |(?:^| )")[a-z]')


def _article(match: re.Match[str]) -> str:
    word = match.group(2).lower()
    return match.group(1) + english.article(word)[1:] + " "


def expand(rng: Random, text: str, slots: Mapping[str, str] | None = None) -> str:
    """Choose among the alternatives in `text`, innermost first, then fill in the slots.

    slots: value of each slot by its name; None leaves slots as they are.
    """
    while match := _CHOICE.search(text):
        text = text[: match.start()] + rng.choice(match.group(1).split("|")) + text[match.end() :]
    if slots is not None:
        while match := _SLOT.search(text):
            text = text[: match.start()] + slots[match.group(1)] + text[match.end() :]
    return " ".join(text.split()).replace(" ,", ",").replace(" .", ".")


def tidy(text: str) -> str:
    """Capitalize the starts of sentences and of speech, and choose "a" or "an" by the next word."""
    text = _ARTICLE.sub(_article, text)
    return _START.sub(lambda match: match.group()[:-1] + match.group()[-1].upper(), text)
