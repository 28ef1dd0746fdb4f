"""Groups that have ended and whose attention weights are still to be computed, a batch at a time.

The weights take a forward pass over source and text. For one text most of its time is the fixed cost of a pass, and
the sentences of a request end in different steps. So they wait for each other for a few steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.messages import Hypothesis

MAX_BATCH_TOKENS = 1024
"""Tokens of sources and texts in a batch, except for a single longer text. Running streams wait for a batch."""
MAX_WAIT_STEPS = 16
"""Steps for which an ended group waits for others."""


@dataclass(frozen=True)
class EndedGroup:
    """A group without its attention weights. hypotheses: its result. step: number of the step in which it ended."""

    group: SequenceGroup
    hypotheses: list[Hypothesis]
    step: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the forward pass: source and text of each hypothesis."""
        group = self.group
        own = group.num_source_tokens + group.num_prompt_tokens
        return sum(own + len(hypothesis.token_ids) for hypothesis in self.hypotheses)


class AlignmentQueue:
    """The ended groups of one model, in the order of their ends."""

    def __init__(self) -> None:
        self._waiting: list[EndedGroup] = []
        self._step = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, group: SequenceGroup, hypotheses: list[Hypothesis]) -> None:
        self._waiting.append(EndedGroup(group, hypotheses, self._step))

    def drop(self, group: SequenceGroup) -> None:
        """Remove a group that nobody waits for."""
        self._waiting = [ended for ended in self._waiting if ended.group is not group]

    def take(self, others_run: bool) -> list[EndedGroup]:
        """The groups of the next batch; none if it can wait. Called once for each step.

        others_run: further groups with attention are running or queued.
        """
        self._step += 1
        if not self._waiting:
            return []
        size, tokens = 0, 0
        for ended in self._waiting:
            tokens += ended.num_tokens
            # An adapter changes all rows of a forward pass, so that a batch has one adapter.
            if size and (tokens > MAX_BATCH_TOKENS or ended.group.adapter != self._waiting[0].group.adapter):
                break
            size += 1
        is_full = size < len(self._waiting) or tokens > MAX_BATCH_TOKENS
        if others_run and not is_full and self._step - self._waiting[0].step <= MAX_WAIT_STEPS:
            return []
        taken, self._waiting = self._waiting[:size], self._waiting[size:]
        return taken
