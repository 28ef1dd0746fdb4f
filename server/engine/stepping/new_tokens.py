"""Gives the tokens that were chosen in a step to their sequence groups, and records the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from server.engine.choosing.selection import Selection
from server.engine.grammars.grammar_masks import NO_ALLOWED_TOKEN
from server.engine.scheduling.scheduler import Scheduler
from server.engine.sequences.events import EngineEvents
from server.engine.sequences.grammar_state import fork
from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.generate_messages import FinishReason, Tokens
from server.ipc.wire.logprobs import TokenLogprob, pack


class NewTokens:
    """Gives new tokens to the sequence groups of one model, and says which groups end with them.

    scheduler: scheduler of the model.
    restart_tokens: length at which a text must be computed again from its start; see `ModelLimits`.
    num_drafted_tokens: number of draft tokens that were verified so far.
    num_accepted_tokens: how many of them were accepted.
    """

    def __init__(self, scheduler: Scheduler, restart_tokens: int | None) -> None:
        self._scheduler, self._restart_tokens = scheduler, restart_tokens
        self.num_drafted_tokens = 0
        self.num_accepted_tokens = 0
        self._beam_lags: list[int] = []

    def give(
        self, selection: Selection, events: EngineEvents, now: float
    ) -> FinishReason | Literal["engine_error"] | None:
        """Give the chosen tokens of a group to its sequences, and record the event.

        now: seconds of `time.monotonic()`.
        Returns why the caller must end the group; None if the group continues.
        """
        group = selection.group
        if selection.failed:
            return "engine_error"
        if selection.retry_without_draft:
            self._scheduler.retry_without_draft(group)
            return None
        if selection.no_token_left:
            return "stop" if group.is_complete else "length"
        if group.first_token is None:
            group.first_token = now
        if selection.tokens is not None:
            return self._append(group, selection.tokens, selection.logprobs, events)
        if selection.parents is not None:
            self._scheduler.blocks.publish(group)
            return self._advance(group, selection.parents, events)
        return None

    def restart_if_outgrown(self, group: SequenceGroup) -> None:
        """Restart a group whose text has become longer than `restart_tokens`: other rotary embeddings then apply."""
        limit = self._restart_tokens
        if limit is not None and group.rope_length <= limit < group.num_tokens:
            self._scheduler.restart(group)

    def take_beam_lags(self) -> list[int]:
        """For each beam search that streams, the number of its tokens that are not certain yet. Forgets the numbers."""
        lags, self._beam_lags = self._beam_lags, []
        return lags

    def _append(
        self, group: SequenceGroup, tokens: list[int], logprobs: Sequence[TokenLogprob], events: EngineEvents
    ) -> FinishReason | None:
        """Append new tokens to the sequence of a group without beams, up to the first end token, and record the event.

        tokens: more than one if draft tokens were accepted.
        logprobs: one for each token, or empty.
        Returns why the group ends; None if it continues.
        """
        if len(tokens) > 1:
            ends = (index + 1 for index, token in enumerate(tokens) if token in group.end_ids)
            count = next(ends, len(tokens))
            tokens, logprobs = tokens[:count], logprobs[:count]
        self.num_drafted_tokens += len(group.sequences[0].draft)
        self.num_accepted_tokens += len(tokens) - 1
        self._scheduler.append(group, tokens)
        if group.nodes is not None:
            group.follow([0], tokens)
        group.logprobs += logprobs
        reported = pack(logprobs) if logprobs else None
        events.tokens.append(Tokens(group.sequence_id, tokens, reported, group.cached_tokens or 0))
        if tokens[-1] in group.end_ids:
            return "stop"
        if group.num_generated >= group.max_new_tokens:
            return "length"
        self.restart_if_outgrown(group)
        return None

    def _advance(self, group: SequenceGroup, parents: list[int], events: EngineEvents) -> FinishReason | None:
        """Fork the sequences of a group after its beam search has advanced, and record the tokens common to all beams.

        parents: for each surviving beam, the index of the beam that it continues.
        Returns why the group ends; None if it continues.
        """
        beams = group.beams
        assert beams is not None
        if group.params.stream:
            agreed = beams.agreed_prefix()
            fresh = agreed[group.num_reported_tokens :]
            if fresh:
                reported = pack(beams.agreed_logprobs()[group.num_reported_tokens :]) if group.params.logprobs else None
                events.tokens.append(Tokens(group.sequence_id, fresh, reported, group.cached_tokens or 0))
                group.num_reported_tokens = len(agreed)
            if not beams.done:
                self._beam_lags.append(beams.length - len(agreed))
        if beams.done:
            return "length"
        self._scheduler.blocks.fork(group, parents)
        if group.nodes is not None:
            group.follow(parents, beams.running_beams.last_tokens)
        if group.grammar_states:
            possible = [beam.is_possible for beam in beams.running]
            group.grammar_states = fork(group.grammar_states, parents, possible, NO_ALLOWED_TOKEN)
        self.restart_if_outgrown(group)
        return None
