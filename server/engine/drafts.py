"""Drafts for speculative decoding, and a drafter that copies n-grams of the text.

The model verifies every draft token, so a wrong draft costs time and never changes the result. A right one lets the
model generate several tokens in one step. Source: Leviathan et al. 2023, arXiv:2211.17192; see docs/decisions/0018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from server.engine.block_manager import BlockManager
from server.engine.sequence import SequenceGroup

NGRAM_TOKENS = (4, 3, 2)
"""Lengths of the n-grams that are looked up, longest first. Drafts after a single token are seldom right."""


class Drafter(Protocol):
    """Drafts the next tokens of groups without beams. pool: KV blocks of the drafter, None if it has no model."""

    @property
    def pool(self) -> BlockManager | None: ...

    def propose(self, groups: Sequence[SequenceGroup]) -> None:
        """Set `draft` of each group's sequence; it may stay empty. groups: those that decode in the next step."""

    def forget(self, group: SequenceGroup) -> None:
        """Drop the data of a group that has ended or gets no more drafts."""


def max_draft_tokens(group: SequenceGroup, num_tokens: int) -> int:
    """Longest useful draft: at most `num_tokens`, and one less than the group may still generate.

    The model always adds one token of its own.
    """
    return min(num_tokens, group.max_new_tokens - group.num_generated - 1)


@dataclass(slots=True)
class _NgramIndex:
    """End position of the last occurrence of each n-gram.

    ends: from n-gram to end position. The n-grams at the end of the text are not entered yet.
    indexed: number of tokens of the text at the last update.
    """

    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    indexed: int = 0


class NgramDrafter:
    """Drafts the tokens that followed the previous occurrence of the n-gram at the end of the text.

    The text consists of the source (of an encoder-decoder), the prompt and the generated tokens, in this order.
    num_tokens: longest draft.
    Source: Yang et al. 2023, arXiv:2304.04487.
    """

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.pool: BlockManager | None = None
        self._indices: dict[SequenceGroup, _NgramIndex] = {}

    def propose(self, groups: Sequence[SequenceGroup]) -> None:
        for group in groups:
            count = max_draft_tokens(group, self.num_tokens)
            if count > 0:
                index = self._indices.setdefault(group, _NgramIndex())
                text = [*group.source_token_ids, *group.sequences[0].tokens]
                group.sequences[0].draft = self._draft(index, text, count)

    def forget(self, group: SequenceGroup) -> None:
        self._indices.pop(group, None)

    @staticmethod
    def _draft(index: _NgramIndex, text: Sequence[int], count: int) -> list[int]:
        # The last n-grams are looked up before they are entered, so that they do not find themselves.
        for end in range(max(index.indexed, min(NGRAM_TOKENS)), len(text)):
            for length in NGRAM_TOKENS:
                if length <= end:
                    index.ends[tuple(text[end - length : end])] = end
        index.indexed = len(text)
        for length in NGRAM_TOKENS:
            if length <= len(text):
                found = index.ends.get(tuple(text[len(text) - length :]))
                if found is not None:
                    # If the draft reaches the end of the text, it continues as a repetition of the same period.
                    period = len(text) - found
                    return [text[found + place % period] for place in range(count)]
        return []
