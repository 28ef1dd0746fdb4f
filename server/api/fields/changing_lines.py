"""Lines with which programs begin a system prompt and that change with every request.

Such a line says nothing to the model, but a prompt that differs from the first tokens on cannot use the prefix cache.
It is dropped, and its place is named in `X-Ignored-Parameters`.
"""

from __future__ import annotations

from collections.abc import Sequence

CHANGING_LINES = ("x-anthropic-billing-header:",)
"""Beginnings of the lines. Claude Code: version and a checksum of the request."""


def without_changing_lines(text: str) -> str:
    """A system prompt without the known lines at its front. A prompt without any is returned unchanged."""
    while text.startswith(CHANGING_LINES):
        text = text.partition("\n")[2].lstrip("\n")
    return text


def changing_texts(texts: Sequence[str]) -> list[int]:
    """Indices of the texts, at the front of a system prompt of several texts, that begin with a known line."""
    found = []
    for index, text in enumerate(texts):
        rest = without_changing_lines(text)
        if rest != text:
            found.append(index)
        if rest:
            break
    return found
