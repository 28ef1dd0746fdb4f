"""Guesses of the tokens to come: from the text itself. Knows requests and tokens; no model, no blocks.

A guess costs nothing but time when it is wrong: the model chooses every token itself, and a draft only lets it choose
several in one step (speculative decoding, Leviathan et al. 2023, arXiv:2211.17192; docs/decisions/0018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from server.engine.block_manager import BlockManager
from server.engine.sequence import Request

NGRAM_TOKENS = (4, 3, 2)
"""Lengths of the endings that are looked for, longest first. What follows a single token is guessed too badly."""


class Drafter(Protocol):
    """Guesses for the single rows of requests that lack one token. pool: of its keys and values, if it has any."""

    @property
    def pool(self) -> BlockManager | None: ...

    def propose(self, requests: Sequence[Request]) -> None:
        """Fill the drafts of the requests' rows, or leave them empty."""

    def forget(self, request: Request) -> None:
        """A request has ended, or wants no drafts any more."""


def wanted(request: Request, num_tokens: int) -> int:
    """Tokens to guess: one less than the request may still make, as the model's own token comes on top."""
    return min(num_tokens, request.max_new_tokens - request.num_generated - 1)


@dataclass(slots=True)
class _Index:
    """Where the n-grams of a text ended last, those left out that its first `indexed` tokens end with."""

    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    indexed: int = 0


class NgramDrafts:
    """Whatever followed the last few tokens when they stood in the text before (Yang et al. 2023, arXiv:2304.04487).

    The text is the source of an encoder-decoder, the prompt, and the answer so far. num_tokens: of a draft, at most.
    """

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.pool: BlockManager | None = None
        self._indices: dict[Request, _Index] = {}

    def propose(self, requests: Sequence[Request]) -> None:
        for request in requests:
            count = wanted(request, self.num_tokens)
            if count > 0:
                index = self._indices.setdefault(request, _Index())
                request.rows[0].draft = self._guess(index, [*request.source_token_ids, *request.rows[0].tokens], count)

    def forget(self, request: Request) -> None:
        self._indices.pop(request, None)

    @staticmethod
    def _guess(index: _Index, text: Sequence[int], count: int) -> list[int]:
        # An ending is looked for before it is put in, or it would find itself.
        for end in range(max(index.indexed, min(NGRAM_TOKENS)), len(text)):
            for length in NGRAM_TOKENS:
                if length <= end:
                    index.ends[tuple(text[end - length : end])] = end
        index.indexed = len(text)
        for length in NGRAM_TOKENS:
            if length <= len(text):
                found = index.ends.get(tuple(text[len(text) - length :]))
                if found is not None:
                    # What is repeated may be short: then it goes on as it began.
                    period = len(text) - found
                    return [text[found + place % period] for place in range(count)]
        return []
