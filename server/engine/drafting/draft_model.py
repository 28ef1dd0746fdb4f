"""Drafts from a smaller model with the same vocabulary.

The draft model samples with the settings and the random numbers of the target model. The two models therefore choose
the same token as often as their distributions allow, whether they sample or decode greedily.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_sizes import GraphSizes
from models.backends.logits import LogitsRequest
from server.engine.cache.block_manager import BlockManager
from server.engine.choosing.sampling_positions import SamplingPosition
from server.engine.choosing.selection import choose
from server.engine.device.captured_parts import Part
from server.engine.device.device_copies import HostTopK
from server.engine.device.runner import Runner
from server.engine.drafting.drafts import max_draft_tokens
from server.engine.scheduling.schedule import Schedule, ScheduledRow
from server.engine.scheduling.step_costs import StepCosts
from server.engine.sequences.sequence import CachedSequence, SequenceGroup


@dataclass(slots=True, eq=False)
class _DraftSequence(CachedSequence):
    """A sequence in the cache of the draft model: tokens of the target sequence, followed by draft tokens.

    confirmed: number of leading tokens that come from the target sequence.
    """

    confirmed: int = 0

    def follow(self, tokens: Sequence[int]) -> None:
        """Make the tokens equal to the tokens of the target sequence. Draft tokens that were accepted stay computed."""
        equal = self.confirmed
        while equal < min(len(tokens), len(self.tokens)) and self.tokens[equal] == tokens[equal]:
            equal += 1
        self.tokens[equal:] = tokens[equal:]
        self.confirmed = len(tokens)
        # The last token is computed again, because its logits are needed.
        self.num_computed_tokens = min(self.num_computed_tokens, equal, len(tokens) - 1)


class ModelDrafter:
    """Drafts with a decoder that has its own KV pool. Groups that do not fit the pool get no drafts.

    runner, pool: the draft model and its KV blocks.
    num_tokens: length of the longest draft, in tokens.
    max_batch_tokens: largest number of tokens in one prefill step of the draft model. A longer text takes several
        steps; its group gets no draft before the last of them.
    context_tokens: length of the longest sequence of the draft model, in tokens.
    """

    def __init__(
        self, runner: Runner, pool: BlockManager, num_tokens: int, max_batch_tokens: int, context_tokens: int
    ) -> None:
        self.runner = runner
        self.pool = pool
        self.costs: StepCosts | None = None
        self.num_tokens = num_tokens
        self.max_batch_tokens = max_batch_tokens
        self.context_tokens = context_tokens
        self._sequences: dict[SequenceGroup, _DraftSequence] = {}

    @torch.inference_mode()
    def propose(self, groups: Sequence[SequenceGroup], num_rows: int) -> None:
        budget = self.max_batch_tokens
        rows = []
        for group in groups:
            count = max_draft_tokens(group, self.num_tokens)
            if count > 0 and budget > 0 and self._make_room(group, group.num_tokens + count - 1):
                sequence = self._sequences[group]
                sequence.follow(group.sequences[0].tokens)
                rows.append(ScheduledRow(group, sequence, min(sequence.num_uncomputed_tokens, budget)))
                budget -= rows[-1].num_tokens
        while rows:
            rows = self._step(rows)

    def waits_for_tokens(self, groups: Sequence[SequenceGroup], num_rows: int) -> bool:
        return any(max_draft_tokens(group, self.num_tokens) > 0 for group in groups)

    def forget(self, group: SequenceGroup) -> None:
        sequence = self._sequences.pop(group, None)
        if sequence is not None:
            self.pool.release(sequence.block_table)

    def capture(self, limits: GraphSizes, time: CaptureTime) -> dict[Part, str]:
        context = min(self.context_tokens, self.pool.num_blocks * self.pool.block_size)
        own = GraphSizes(limits.rows, context, tokens=min(limits.tokens, self.max_batch_tokens))
        reason = self.runner.capture_steps(own, time=time).get("decode steps")
        return {} if reason is None else {"drafts": reason}

    def _make_room(self, group: SequenceGroup, tokens: int) -> bool:
        sequence = self._sequences.setdefault(group, _DraftSequence([]))
        lacking = self.pool.blocks_for(tokens) - len(sequence.block_table)
        if tokens > self.context_tokens or lacking > self.pool.free_blocks:
            return False
        sequence.block_table += self.pool.allocate(max(lacking, 0))
        return True

    def _step(self, rows: list[ScheduledRow]) -> list[ScheduledRow]:
        """Run one step of the draft model, and add a draft token to each row whose last token was computed.

        Returns the rows that need another draft token.
        """
        ready = [row for row in rows if row.needs_logits]
        model = self.runner.model
        request = LogitsRequest() if 0 < len(ready) <= model.max_logits_rows else None
        output, _ = self.runner.run(Schedule(chunks=rows), request)
        for row in rows:
            row.sequence.num_computed_tokens += row.num_tokens
        if not ready:
            return []
        places = [SamplingPosition(row.group, row.sequence.tokens, len(row.sequence.tokens)) for row in ready]
        logits, top_k = output.logits, output.top_k
        if logits is None or top_k is None:
            logits, top_k = model.logits_top_k(output.hidden, LogitsRequest())
        best = HostTopK.of(top_k)
        tokens, has_token = choose(logits, places, best)
        unfinished = []
        for row, token, *is_valid in zip(ready, tokens, has_token, best.is_finite.tolist(), strict=True):
            draft = row.group.sequences[0].draft
            if not all(is_valid):
                self._drop(row.group)
                continue
            draft.append(token)
            row.sequence.tokens.append(token)
            if len(draft) < max_draft_tokens(row.group, self.num_tokens):
                unfinished.append(ScheduledRow(row.group, row.sequence, 1))
        return unfinished

    def _drop(self, group: SequenceGroup) -> None:
        """Stop drafting for a group: the draft model found no possible token, or its logits are not finite."""
        group.accepts_drafts = False
        group.sequences[0].draft = []
        blocks = self._sequences[group].block_table
        self.forget(group)
        self.runner.clear(blocks, [])
