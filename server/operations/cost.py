"""Upper bounds of the work that a request causes, computed before any of it is done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_TOKENS_PER_CHARACTER = 33
"""Most tokens that one character can become. U+FDFA grows to 33 bytes of UTF-8 under the normalization forms NFKC and
NFKD (Unicode Standard Annex 15), and a tokenizer with byte fallback makes one token of each byte."""

MAX_ADDED_TOKENS = 8
"""Most tokens that a tokenizer or a language choice adds around one text, or around a pair of texts."""


@dataclass(frozen=True)
class Cost:
    """Upper bounds of the work of one request.

    Every specification computes one in `cost(model)`, from the lengths of its fields and the sizes of the model alone.
    Nothing is tokenized, copied or split into windows before.

    input_characters: characters that are tokenized; a text that is repeated counts each time.
    input_tokens: tokens that the model reads, over all sequences.
    sequences: sequences that the engine schedules; beams count each.
    new_tokens: tokens that the model generates, over all sequences.
    answer_numbers: floating-point numbers in the result (vector components, scores, log-probabilities, attention).
    """

    input_characters: int
    input_tokens: int
    sequences: int
    new_tokens: int = 0
    answer_numbers: int = 0


def max_tokens(characters: int, limit_tokens: int | None = None) -> int:
    """Most tokens that a text of this many characters can become.

    limit_tokens: the operation refuses or shortens longer texts; None if it splits them into windows.
    """
    tokens = characters * MAX_TOKENS_PER_CHARACTER + MAX_ADDED_TOKENS
    return tokens if limit_tokens is None else min(tokens, limit_tokens)


def max_windows(characters: int, step_tokens: int) -> int:
    """Most windows over a text of this many characters, if each starts at least `step_tokens` after the one before."""
    return 1 + max_tokens(characters) // max(1, step_tokens)


def characters_of(texts: Iterable[str]) -> int:
    """Number of characters of all texts together."""
    return sum(map(len, texts))
