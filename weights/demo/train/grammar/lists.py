"""Parse the short notations in which the word lists of the grammars are written."""

from __future__ import annotations


def listed(text: str) -> list[str]:
    """Split a text such as `one, two words, three` at its commas; without a comma, at white space."""
    return [item.strip() for item in text.split("," if "," in text else None)]


def pairs(text: str) -> list[tuple[str, str]]:
    """Parse a text such as `cat=chat, dog=chien` to pairs of an English and a French entry."""
    found = []
    for item in text.replace("\n", ", ").split(", "):
        if item:
            en, fr = item.split("=")
            found.append((en, fr))
    return found
