"""Queue of sequence groups that have ended and still need their attention weights, which are computed in batches.

The weights take a forward pass over source and text. For one text, most of the time is the fixed cost of a pass. The
sentences of a request end in different steps. An ended group therefore waits a few steps, until one pass serves
several.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.generate_messages import Hypothesis

MAX_BATCH_TOKENS = 1024
"""Most tokens in a batch, sources and texts together. A group with more tokens is computed alone.

Running streams pause while a batch is computed.
"""
MAX_WAIT_STEPS = 32
"""Most steps for which an ended group waits for other groups of its call to join its batch."""
MAX_FOREIGN_WAIT_STEPS = 4
"""Most steps for which a group waits for groups of other calls, if no further group of its own call is expected."""


@dataclass(frozen=True)
class EndedGroup:
    """A group that has ended, and whose attention weights are not computed yet.

    hypotheses: result of the group.
    step: index of the step in which the group ended.
    num_tokens: tokens of the forward pass: source and text of each hypothesis.
    """

    group: SequenceGroup
    hypotheses: list[Hypothesis]
    step: int
    num_tokens: int


class AlignmentQueue:
    """The ended groups of one model that wait for their attention weights, in the order in which they ended."""

    def __init__(self) -> None:
        self._waiting: list[EndedGroup] = []
        self._step = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, group: SequenceGroup, hypotheses: list[Hypothesis]) -> None:
        own = group.num_source_tokens + group.num_prompt_tokens
        tokens = sum(own + len(hypothesis.token_ids) for hypothesis in hypotheses)
        self._waiting.append(EndedGroup(group, hypotheses, self._step, tokens))

    def drop(self, group: SequenceGroup) -> None:
        """Remove a group from the queue, because nobody needs its result. No effect on a group outside the queue."""
        self._waiting = [ended for ended in self._waiting if ended.group is not group]

    def take(self, active: Iterable[SequenceGroup]) -> list[EndedGroup]:
        """Remove and return the groups of the next batch; empty if the batch can wait. Called once in each step.

        active: the groups that are running or queued. If none of them needs attention weights, nothing can join the
            batch, and it does not wait.
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
        if not is_full and self._can_wait(active):
            return []
        taken, self._waiting = self._waiting[:size], self._waiting[size:]
        return taken

    def _can_wait(self, active: Iterable[SequenceGroup]) -> bool:
        """Whether the next batch should wait: further groups are expected, and no ended group has waited too long.

        The last groups of a call wait for a few steps only, because the client of the call waits for nothing else.
        """
        others_run = False
        last_calls = {ended.group.call_id for ended in self._waiting}  # calls without further groups
        for group in active:
            if group.has_attention:
                others_run = True
                last_calls.discard(group.call_id)
                if not last_calls:
                    break
        ages = [
            (self._step - ended.step, MAX_FOREIGN_WAIT_STEPS if ended.group.call_id in last_calls else MAX_WAIT_STEPS)
            for ended in self._waiting
        ]
        return others_run and all(age <= limit for age, limit in ages)
