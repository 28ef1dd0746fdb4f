"""Sequence groups whose next token waits for a grammar mask. The steps of other groups go on meanwhile.

The masks of a step are started before its forward pass. A group whose masks are not done soon after the pass is held:
its logits are kept, no step computes the group, and its token is chosen as soon as the masks are done.
See docs/decisions/0052-grammars-off-the-step.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from models.backends.logits import DecoderOutput
from server.engine.grammars.grammar_masks import TOO_COMPLEX, GrammarMasks
from server.engine.grammars.mask_threads import MaskTask
from server.engine.sequences.sequence import SequenceGroup, SequenceStatus

PATIENCE = 0.25
"""Longest wait for masks after the forward pass of a step, as a fraction of the duration of the pass.

Applies to steps that also have groups without a grammar.
"""
PATIENCE_ALONE = 2.0
"""Longest wait for masks after a pass in which each group has a grammar, as a multiple of the duration of the pass."""
MAX_SECONDS = 20.0
"""Time limit in seconds for compiling a grammar, and for computing the masks of one token."""
TOO_SLOW = f"{TOO_COMPLEX}: compiling it, or finding its next tokens, took more than {MAX_SECONDS:g} s"


class GrammarWaits:
    """Keeps the mask tasks of one model's sequence groups, and the decoder outputs of held groups."""

    def __init__(self, masks: GrammarMasks) -> None:
        self._masks = masks
        self._tasks: dict[SequenceGroup, MaskTask] = {}
        self._held: dict[SequenceGroup, DecoderOutput] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether any group is held, which means that its next token waits for grammar masks."""
        return bool(self._held)

    def prepare(self, group: SequenceGroup) -> None:
        """Start to compile the grammars of a new group."""
        for grammar_state in group.grammar_states:
            self._masks.prepare(grammar_state)

    def start(self, groups: Sequence[SequenceGroup]) -> None:
        """Start computing the masks of groups whose grammars are compiled.

        groups: groups that get a token in this step. Groups without a grammar are ignored.
        """
        tasks = []
        for group in groups:
            if needs_masks(group) and self._task(group) is None and group.grammar_states[0].is_compiled:
                ends, stops = group.params.end_token_ids, group.params.stop_token_ids
                states = zip(group.sequences, group.grammar_states, strict=True)
                task = MaskTask([(state, row.tokens, ends, stops) for row, state in states])
                self._tasks[group] = task
                tasks.append(task)
        if tasks:
            self._masks.start(tasks)

    def late(self, groups: Sequence[SequenceGroup], forward_seconds: float) -> list[SequenceGroup]:
        """Wait for the masks of a step, for a time in proportion to the forward pass.

        groups: groups that get a token in the step.
        forward_seconds: duration of the forward pass.
        Returns the groups whose masks are not done after that time.
        """
        waiting = [group for group in groups if needs_masks(group)]
        tasks = [task for group in waiting if (task := self._task(group)) is not None and not task.is_slow]
        patience = PATIENCE_ALONE if len(waiting) == len(groups) else PATIENCE
        self._masks.threads.wait(tasks, patience * forward_seconds)
        return [group for group in waiting if not self._is_done(group)]

    def hold(self, group: SequenceGroup, output: DecoderOutput) -> None:
        """Keep the decoder output of a group until its masks are done. output: copy of the group's rows of the step."""
        self._held[group] = output

    def take_ready(self) -> list[tuple[SequenceGroup, DecoderOutput]]:
        """Remove and return the held groups whose masks are done, with their outputs.

        Also starts the masks of held groups whose grammars have been compiled meanwhile.
        """
        self.start(list(self._held))
        ready = [(group, output) for group, output in self._held.items() if self._is_done(group)]
        for group, _ in ready:
            del self._held[group]
        return ready

    def drop_preempted(self) -> None:
        """Forget the logits of held groups that will be computed again. Their masks stay valid."""
        for group in list(self._held):
            if group.status is not SequenceStatus.RUNNING or not group.is_computed:
                del self._held[group]

    def overdue(self) -> list[SequenceGroup]:
        """Held groups whose grammar has been compiling, or whose masks have been computing, for over MAX_SECONDS."""
        latest = time.monotonic() - MAX_SECONDS
        return [group for group in self._held if any(started < latest for started in self._started(group))]

    def error_of(self, group: SequenceGroup) -> Exception | None:
        """The exception that ended the computation of a group's masks; None if no computation has failed."""
        task = self._tasks.get(group)
        return None if task is None else task.error

    def forget(self, group: SequenceGroup) -> None:
        """Drop the data of a group that has ended."""
        self._tasks.pop(group, None)
        self._held.pop(group, None)

    def wait(self, seconds: float) -> None:
        """Wait until a grammar or mask is done, for `seconds` at most."""
        self._masks.threads.wait_for_any(seconds)

    def _task(self, group: SequenceGroup) -> MaskTask | None:
        """The mask task for the next token of a group; None if it was not started."""
        task = self._tasks.get(group)
        return task if task is not None and task.num_tokens == group.num_tokens else None

    def _is_done(self, group: SequenceGroup) -> bool:
        task = self._task(group)
        return task is not None and task.is_done

    def _started(self, group: SequenceGroup) -> list[float]:
        """Start times, in seconds of `time.monotonic()`, of the computations that a held group waits for.

        Empty if none of them has begun.
        """
        task = self._task(group)
        if task is not None:
            return [] if task.started is None else [task.started]
        grammars = group.grammar_states[0].grammars.values()
        return [grammar.started for grammar in grammars if grammar.matcher is None and grammar.started is not None]


def needs_masks(group: SequenceGroup) -> bool:
    """Whether the next token of a group needs a grammar mask. A forced first token needs none."""
    return bool(group.grammar_states) and group.num_tokens >= group.grammar_states[0].num_consumed
