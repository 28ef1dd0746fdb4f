"""Word lists as text: the short notations in which the lexicons are written."""

from __future__ import annotations


def listed(text: str) -> list[str]:
    """Read `one, two words, three`; without a comma, every word is an entry."""
    return [item.strip() for item in text.split("," if "," in text else None)]


def pairs(text: str) -> list[tuple[str, str]]:
    """Read `english=french, english=french`."""
    found = []
    for item in text.replace("\n", ", ").split(", "):
        if item:
            en, fr = item.split("=")
            found.append((en, fr))
    return found
