"""Remove lines that some clients put before a system prompt and that change with every request.

Such a line tells the model nothing, but it makes the first tokens of each prompt different, so that the prefix cache
cannot be used. It is dropped, and the field that contained it is named in `X-Ignored-Parameters`.
"""

from __future__ import annotations

from collections.abc import Sequence

CHANGING_LINES = ("x-anthropic-billing-header:",)
"""Beginnings of the lines that are removed. Claude Code sends a line with its version and a checksum of the request."""


def without_changing_lines(text: str) -> str:
    """Remove known changing lines, and empty lines after them, from the front of a system prompt."""
    while text.startswith(CHANGING_LINES):
        text = text.partition("\n")[2].lstrip("\n")
    return text


def changing_texts(texts: Sequence[str]) -> list[int]:
    """Indices of the texts that begin with a known changing line.

    texts: parts of one system prompt. The search ends at the first text that has other content.
    """
    found = []
    for index, text in enumerate(texts):
        rest = without_changing_lines(text)
        if rest != text:
            found.append(index)
        if rest:
            break
    return found
