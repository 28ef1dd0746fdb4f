"""Data classes for what one step computes: rows of decoding sequences, chunks of prompts, sources. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from server.engine.sequences.sequence import CachedSequence, SequenceGroup

SOURCE_TOKENS_PER_TOKEN = 2
"""Number of source tokens that cost as much as one decoder token: they need no output head and no KV cache."""


def source_cost(group: SequenceGroup) -> int:
    """Cost of encoding the source of a group, in tokens of the budget."""
    return -(-group.num_source_tokens // SOURCE_TOKENS_PER_TOKEN)


@dataclass(slots=True)
class ScheduledRow:
    """One row of a step: the next `num_tokens` uncomputed tokens of a sequence, followed by its draft."""

    group: SequenceGroup
    sequence: CachedSequence
    num_tokens: int

    @property
    def num_step_tokens(self) -> int:
        """Number of tokens that the step computes in this row, draft included."""
        return self.num_tokens + len(self.sequence.draft)

    @property
    def needs_logits(self) -> bool:
        """Whether the step computes the last token of the sequence."""
        sequence = self.sequence
        return self.num_tokens == len(sequence.tokens) - sequence.num_computed_tokens


@dataclass(slots=True)
class Schedule:
    """One step: encode sources, copy blocks, then compute rows.

    decoding: groups that decode. Each of their sequences has one row with its last token, its draft, and accepted
        draft tokens that must be computed again.
    sequences: the sequences of these groups, in order.
    chunks: all other rows: parts of prompts, and parts of texts that are computed again. In a step that is launched
        ahead, all rows are here.
    sources: groups whose sources are encoded.
    copies: copies within the `self` pool: (source block, destination block, first slot, end slot).
    num_row_tokens: tokens of all rows. Set when the schedule is complete.
    num_decode_tokens: tokens of decoding rows that already have a generated token. Set when the schedule is complete.
    is_plain: whether each row of `sequences` computes one token. Set when the schedule is complete.
    keeps_hidden: whether a draft head reads the final hidden states of all tokens.
    """

    decoding: list[SequenceGroup] = field(default_factory=list)
    sequences: list[CachedSequence] = field(default_factory=list)
    chunks: list[ScheduledRow] = field(default_factory=list)
    sources: list[SequenceGroup] = field(default_factory=list)
    copies: list[tuple[int, int, int, int]] = field(default_factory=list)
    num_row_tokens: int = 0
    num_decode_tokens: int = 0
    is_plain: bool = True
    keeps_hidden: bool = False
    _rows: list[ScheduledRow] | None = field(default=None, init=False, repr=False)

    @property
    def num_rows(self) -> int:
        return len(self.sequences) + len(self.chunks)

    @property
    def rows(self) -> list[ScheduledRow]:
        """All rows: the rows of `sequences`, then the chunks.

        The list is made at the first call, which must come before the step is computed. It is not made in advance,
        because decode steps of many beams do not need it.
        """
        if self._rows is None:
            owners = [group for group in self.decoding for _ in group.sequences]
            pairs = zip(owners, self.sequences, strict=True)
            self._rows = [ScheduledRow(group, row, 1 + row.repeated_tokens) for group, row in pairs] + self.chunks
        return self._rows

    @property
    def ready(self) -> list[SequenceGroup]:
        """Groups that get their next tokens in this step, because it computes their last tokens; in row order."""
        return [*self.decoding, *dict.fromkeys([row.group for row in self.chunks if row.needs_logits])]

    @property
    def groups(self) -> list[SequenceGroup]:
        """All groups of the step, each once."""
        return list(dict.fromkeys([*self.sources, *self.decoding, *[row.group for row in self.chunks]]))

    @property
    def scores_prompts(self) -> bool:
        """Whether log-probabilities of prompt tokens are computed from the final hidden states of all tokens."""
        return any(group.has_prompt_to_score for group in self.groups)

    @property
    def has_prefill(self) -> bool:
        """Whether a row computes more than the last token of a sequence and accepted draft tokens."""
        return any(row.num_tokens > 1 + row.sequence.repeated_tokens for row in self.chunks)

    @property
    def num_tokens(self) -> int:
        return self.num_row_tokens + sum(group.num_source_tokens for group in self.sources)

    @property
    def num_prefill_tokens(self) -> int:
        """Number of prefill tokens in the step, plus the cost of its sources in tokens (`source_cost`)."""
        sources = sum(source_cost(group) for group in self.sources)
        return self.num_row_tokens - self.num_decode_tokens + sources

    @property
    def phase(self) -> Literal["prefill", "decode", "mixed"]:
        if self.num_decode_tokens == 0:
            return "prefill"
        return "decode" if self.num_decode_tokens == self.num_tokens else "mixed"

    def decode(self, group: SequenceGroup) -> None:
        """Add a group that is ready to decode."""
        self.decoding.append(group)
        self.sequences += group.sequences

    def count_tokens(self) -> None:
        """Set `num_row_tokens`, `num_decode_tokens` and `is_plain`. The last token of a prompt counts as prefill."""
        prompts = sum(len(group.sequences) for group in self.decoding if group.num_generated == 0)
        self.num_decode_tokens = len(self.sequences) - prompts
        self.num_row_tokens = len(self.sequences) + sum(row.num_step_tokens for row in self.chunks)
        drafting = [group for group in self.decoding if _further_tokens(group)]
        self.is_plain = not drafting
        for group in drafting:
            self.num_row_tokens += _further_tokens(group)
            self.num_decode_tokens += _further_tokens(group) if group.num_generated > 0 else 0


def _further_tokens(group: SequenceGroup) -> int:
    """Number of tokens in the row of a decoding group besides its last token; 0 for a group with beams.

    These are draft tokens, and accepted draft tokens that must be computed again.
    """
    first = group.sequences[0]
    return first.repeated_tokens + len(first.draft)
