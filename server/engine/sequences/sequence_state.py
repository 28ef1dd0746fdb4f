"""The state slots of one sequence, for models with mixers (layers with a state per sequence). Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class RowPart(NamedTuple):
    """Consecutive tokens of a row that start from one state and end in another one.

    num_tokens: tokens of the part.
    is_prompt: whether the tokens belong to the prompt. Prompt tokens run in chunks, other tokens one by one.
    source: slot of the state before the part; None for the beginning of the text.
    slot: slot of the state after the part.
    """

    num_tokens: int
    is_prompt: bool
    source: int | None
    slot: int


@dataclass(slots=True)
class SequenceState:
    """State slots of one sequence. The sequence counts as an owner of each of them.

    source: slot with the state after the computed tokens, None before the first token. It is `slot`, or a slot that is
        shared with other sequences or the prefix cache and is never written.
    slot: slot that the next step writes; None after a fork, until the next step.
    draft_slot: slot that the next step writes after the draft; None without a draft.
    wanted: positions in the prompt at which to take snapshots, each as the number of tokens before it.
    snapshots: slot of each snapshot, by the number of tokens before it. The prefix cache gets a snapshot as soon as
        later logits are finite.
    parts: parts of the row in the current step.
    """

    source: int | None
    slot: int | None
    draft_slot: int | None = None
    wanted: set[int] = field(default_factory=set)
    snapshots: dict[int, int] = field(default_factory=dict)
    parts: list[RowPart] = field(default_factory=list)

    def divide(self, start: int, num_tokens: int, num_draft_tokens: int, num_prompt_tokens: int) -> None:
        """Set `parts` for a step. The row is divided where a snapshot is taken, after its prompt, and before its draft.

        start: number of computed tokens. num_tokens: tokens of the row without its draft.
        """
        assert self.slot is not None
        end = start + num_tokens
        ends = {position for position in (*self.snapshots, num_prompt_tokens) if start < position < end}
        self.parts, source = [], self.source
        for stop in sorted((*ends, end)):
            slot = self.snapshots.get(stop, self.slot)
            self.parts.append(RowPart(stop - start, stop <= num_prompt_tokens, source, slot))
            source, start = slot, stop
        if num_draft_tokens:
            assert self.draft_slot is not None
            self.parts.append(RowPart(num_draft_tokens, False, source, self.draft_slot))

    def held_slots(self) -> list[int]:
        """All slots for which the sequence holds a reference."""
        shared = [] if self.source in (None, self.slot) else [self.source]
        return [slot for slot in (self.slot, self.draft_slot, *shared, *self.snapshots.values()) if slot is not None]
