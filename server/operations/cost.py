"""Upper bounds of the work that a request causes, computed before any of it is done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from server.text.tokens.tokenizer import Tokenizer

MAX_ADDED_TOKENS = 8
"""Maximum number of tokens that a tokenizer or a language choice adds around a text or a pair of texts."""

CHARACTER_BYTES = 4
TOKEN_BYTES = 96
PLACED_TOKEN_BYTES = 480
SEQUENCE_BYTES = 2048
NEW_TOKEN_BYTES = 4
NUMBER_BYTES = 20
SCORED_TOKEN_BYTES = 256
"""Measured bytes of memory in the HTTP process for one unit of each kind that `Cost` counts, from `CHARACTER_BYTES` to
`SCORED_TOKEN_BYTES` (docs/decisions/0050-admission.md).
"""

LOG_PROBABILITIES = "log-probabilities"
"""Name of log-probabilities in error messages."""


@dataclass(frozen=True)
class Cost:
    """Upper bounds of the text, tokens and results of one request. Admission reserves them.

    Every specification computes a cost in `cost(model)`, from its fields and the sizes of the model alone. Before that,
    nothing is tokenized, copied or split into windows.

    input_characters: characters that are tokenized; a text that is tokenized several times is counted each time.
    input_tokens: tokens that the model reads, over all sequences.
    sequences: sequences that the engine schedules; each beam counts as one.
    new_tokens: tokens that the model generates, over all sequences.
    answer_numbers: floating-point numbers in the result (vector components, scores, attention).
    scored_tokens: log-probabilities in the result, each with its token. Log-probabilities of generated tokens are not
        counted: their memory is reserved as they arrive (`server.operations.generating.logprob_memory`).
    scored_param: the request's field that asks for log-probabilities, for errors; empty for no special field.
    placed_tokens: tokens whose (start, end) in the text is kept in memory.
    recording_bytes: memory of a recording.
    """

    input_characters: int
    input_tokens: int
    sequences: int
    new_tokens: int = 0
    answer_numbers: int = 0
    scored_tokens: int = 0
    placed_tokens: int = 0
    recording_bytes: int = 0
    scored_param: str = ""

    @cached_property
    def memory_bytes(self) -> int:
        """Memory that the HTTP process may need for the request, without the temporary memory for tokenizing."""
        return sum(count * each for _, count, each in self.measures())

    def measures(self) -> list[tuple[str, int, int]]:
        """For each kind of counted unit: its name in errors, its count, and the bytes of memory for one unit."""
        return [
            ("characters", self.input_characters, CHARACTER_BYTES),
            ("input tokens", self.input_tokens, TOKEN_BYTES),
            ("sequences", self.sequences, SEQUENCE_BYTES),
            ("new tokens", self.new_tokens, NEW_TOKEN_BYTES),
            ("answer numbers", self.answer_numbers, NUMBER_BYTES),
            (LOG_PROBABILITIES, self.scored_tokens, SCORED_TOKEN_BYTES),
            ("tokens with places", self.placed_tokens, PLACED_TOKEN_BYTES),
            ("bytes of audio", self.recording_bytes, 1),
        ]


def most_tokens(tokenizer: Tokenizer, *texts: str) -> int:
    """Upper bound of the tokens of one text, or of a pair of texts, including tokens that are added around them."""
    return sum(map(tokenizer.token_bound, texts)) + MAX_ADDED_TOKENS


def max_windows(tokens: int, step_tokens: int) -> int:
    """Upper bound of the number of overlapping windows over a text.

    tokens: length of the text. step_tokens: smallest distance between the starts of two windows, in tokens.
    """
    return 1 + tokens // max(1, step_tokens)


def characters_of(texts: Iterable[str]) -> int:
    """Total number of characters of texts."""
    return sum(map(len, texts))
