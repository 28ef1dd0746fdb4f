"""Guesses of the tokens to come: what a smaller model of the same vocabulary would say. Knows its cache, no schedule.

The smaller model chooses with the settings and the very random numbers that the request's own model will use, so that
the two agree as often as their distributions allow, sampled or greedy.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from dataclasses import dataclass

import torch

from models.backends import interface as ops
from server.engine.block_manager import BlockManager
from server.engine.drafts import wanted
from server.engine.runner import Runner
from server.engine.scheduler import Schedule, ScheduledRow
from server.engine.selection import Turn, choose
from server.engine.sequence import Request, Sequence


@dataclass(slots=True, eq=False)
class _Shadow(Sequence):
    """A request's row in the draft model: its tokens and, after them, guesses. confirmed: leading tokens that are sure
    to be the request's."""

    confirmed: int = 0

    def follow(self, tokens: Sequences[int]) -> None:
        """Become the text as it is now: what was guessed right stays computed."""
        right = self.confirmed
        while right < min(len(tokens), len(self.tokens)) and self.tokens[right] == tokens[right]:
            right += 1
        self.tokens[right:] = tokens[right:]
        self.confirmed = len(tokens)
        # The last token is computed again, since its logits are wanted.
        self.num_computed_tokens = min(self.num_computed_tokens, right, len(tokens) - 1)


class ModelDrafts:
    """Drafts from a decoder with a KV pool of its own. Requests that find no room in it go without drafts.

    num_tokens: of a draft, at most. max_batch_tokens: that catch up with a text in one step; a request whose text takes
    several goes without drafts until then. context_tokens: longest text of the draft model.
    """

    def __init__(
        self, runner: Runner, pool: BlockManager, num_tokens: int, max_batch_tokens: int, context_tokens: int
    ) -> None:
        self.runner = runner
        self.pool = pool
        self.num_tokens = num_tokens
        self.max_batch_tokens = max_batch_tokens
        self.context_tokens = context_tokens
        self._shadows: dict[Request, _Shadow] = {}

    @torch.inference_mode()
    def propose(self, requests: Sequences[Request]) -> None:
        budget = self.max_batch_tokens
        rows = []
        for request in requests:
            count = wanted(request, self.num_tokens)
            if count > 0 and budget > 0 and self._make_room(request, request.num_tokens + count - 1):
                shadow = self._shadows[request]
                shadow.follow(request.rows[0].tokens)
                rows.append(ScheduledRow(request, shadow, min(shadow.num_uncomputed_tokens, budget)))
                budget -= rows[-1].num_tokens
        while rows:
            rows = self._step(rows)

    def forget(self, request: Request) -> None:
        shadow = self._shadows.pop(request, None)
        if shadow is not None:
            self.pool.release(shadow.block_table)

    def _make_room(self, request: Request, tokens: int) -> bool:
        shadow = self._shadows.setdefault(request, _Shadow([]))
        lacking = self.pool.blocks_for(tokens) - len(shadow.block_table)
        if tokens > self.context_tokens or lacking > self.pool.free_blocks:
            return False
        shadow.block_table += self.pool.allocate(max(lacking, 0))
        return True

    def _step(self, rows: list[ScheduledRow]) -> list[ScheduledRow]:
        """Compute some tokens of each row, and one more guess of those that are complete. Returns who wants another."""
        ready = [row for row in rows if row.needs_logits]
        scored = self.runner.logits.scoring(len(ready), count=1, with_log_sums=False)
        hidden, _ = self.runner.run(Schedule(rows), scored)
        for row in rows:
            row.sequence.num_computed_tokens += row.num_tokens
        if not ready:
            return []
        places = [
            Turn(row.request, row.sequence.tokens, len(row.sequence.tokens) - row.request.num_prompt_tokens)
            for row in ready
        ]
        logits = self.runner.logits(hidden) if scored is None else scored.logits
        seen = ops.survey(logits) if scored is None else scored.seen
        tokens, possible = choose(logits, places, seen)
        going_on = []
        for row, token, *is_good in zip(ready, tokens, possible, seen.finite.tolist(), strict=True):
            draft = row.request.rows[0].draft
            if not all(is_good):
                self._drop(row.request)
                continue
            draft.append(token)
            row.sequence.tokens.append(token)
            if len(draft) < wanted(row.request, self.num_tokens):
                going_on.append(ScheduledRow(row.request, row.sequence, 1))
        return going_on

    def _drop(self, request: Request) -> None:
        """The draft model has nothing to say of this text, or nothing finite: no more drafts for it."""
        request.takes_drafts = False
        request.rows[0].draft = []
        blocks = self._shadows[request].block_table
        self.forget(request)
        self.runner.clear(blocks, [])
