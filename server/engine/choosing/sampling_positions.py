"""Sampling positions: the indices in one sequence at which tokens are chosen, with the settings for choosing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from server.engine.choosing.logits_processors import ProcessorRow
from server.engine.choosing.sampler import SamplerRow
from server.engine.sequences.sequence import SequenceGroup


class SamplingPosition(NamedTuple):
    """An index in the text of a sequence at which one token is chosen.

    text: tokens of the sequence, followed by its draft. end: the index, which is the number of tokens before it.
    """

    group: SequenceGroup
    text: Sequence[int]
    end: int

    @property
    def tokens(self) -> Sequence[int]:
        """All tokens before the position."""
        return self.text if self.end == len(self.text) else self.text[: self.end]

    @property
    def num_generated(self) -> int:
        """Number of generated tokens before the position."""
        return self.end - self.group.num_prompt_tokens

    @property
    def processor_row(self) -> ProcessorRow:
        """Settings and text for the logits processors at this position."""
        group = self.group
        # A group with a grammar has no draft, because the mask of its grammar is only known for the next token.
        grammar_state = group.grammar_states[0] if group.grammar_states else None
        return ProcessorRow(
            group.params,
            group.max_new_tokens,
            self.tokens,
            self.num_generated,
            group.tables,
            grammar_state,
            -1 if group.nodes is None else int(group.nodes[0]),
        )

    @property
    def sampler_row(self) -> SamplerRow:
        """Settings of the sampler for the token of this position: temperature, filters and seed."""
        return SamplerRow.of(self.group.params, self.group.seed, self.num_generated)


def sampling_positions(group: SequenceGroup) -> list[SamplingPosition]:
    """The position after the last token of a single sequence, and one after each token of its draft."""
    (sequence,) = group.sequences
    tokens, draft = sequence.tokens, sequence.draft
    text = [*tokens, *draft] if draft else tokens
    return [SamplingPosition(group, text, end) for end in range(len(tokens), len(text) + 1)]
