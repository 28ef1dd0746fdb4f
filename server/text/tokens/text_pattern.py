"""A regular expression that finds many texts at once, in time that does not grow with their number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

MAX_CHARACTERS = 256
"""Longer texts are left out. Added tokens have at most some dozen characters."""


def text_pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    """The expression that finds the texts, the longest one at each place; None without any."""
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
    """The expression for the ends of texts below a node of their prefix tree."""
    written = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        written += re.escape(character)
    choices = [re.escape(character) + _expression(child) for character, child in node.items() if character]
    if not choices:
        return written
    return f"{written}(?:{'|'.join(choices)}){'?' if '' in node else ''}"
