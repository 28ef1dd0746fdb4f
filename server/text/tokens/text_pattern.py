"""A regular expression that searches for many texts at once, in time that does not grow with their number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

MAX_CHARACTERS = 256
"""Longest text that is searched for; longer ones are ignored. Added tokens have at most a few dozen characters."""


def text_pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Return an expression that finds the longest of the texts at each place; None if there are no texts."""
    return _pattern(tuple(sorted({text for text in texts if 0 < len(text) <= MAX_CHARACTERS})))


@lru_cache(32)
def _pattern(texts: tuple[str, ...]) -> re.Pattern[str] | None:
    if not texts:
        return None
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    try:
        return re.compile(_expression(tree))
    except RecursionError:
        # Hundreds of texts of which each begins with another one. None of the published tokenizers has them.
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def _expression(node: dict[str, Any]) -> str:
    """Return the expression for the texts below a node of their prefix tree: it matches what follows the node."""
    written = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        written += re.escape(character)
    choices = [re.escape(character) + _expression(child) for character, child in node.items() if character]
    if not choices:
        return written
    return f"{written}(?:{'|'.join(choices)}){'?' if '' in node else ''}"
