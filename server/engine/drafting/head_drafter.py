"""Drafts from a draft head, which reads the hidden states that the model has computed.

Keys and values of the head are in a cache with the block numbers of the model's KV cache, so that prefix caching,
preemption and memory work as for the model. A step with drafts has three parts: `propose` chooses the lengths of the
drafts, `complete` lets the head compute their tokens once their blocks are allocated, and `observe` keeps the hidden
states of the step. See docs/decisions/0185-draft-heads.md.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_sizes import GraphSizes
from models.draft_head import DraftHead
from models.steps.kv_cache import KVCache
from server.engine.cache.block_manager import BlockManager
from server.engine.choosing.sampling_positions import SamplingPosition
from server.engine.choosing.selection import choose
from server.engine.device.captured_parts import Part
from server.engine.device.device_copies import HostTopK
from server.engine.device.runner import Runner
from server.engine.device.slots import Ids
from server.engine.drafting import drafts
from server.engine.drafting.draft_lengths import HeadCosts, head_draft_lengths
from server.engine.drafting.drafts import max_draft_tokens
from server.engine.drafting.head_passes import HeadPart, HeadPasses, Predicted
from server.engine.drafting.head_texts import CATCH_UP_TOKENS, MAX_PATIENCE, FilledBlocks, HeadRates, HeadText
from server.engine.scheduling.schedule import Schedule, ScheduledRow
from server.engine.scheduling.step_costs import StepCosts
from server.engine.sequences.sequence import CachedSequence, SequenceGroup

log = logging.getLogger("triptych.engine")

PROBES = 16
"""Number of predictions to compare with a text when the head catches up with a text without drafts. If they are right,
drafts begin again.
"""
REST_STEPS = 16
"""A text for which no draft was chosen gets no drafts until the next step whose index is a multiple of this number.

All texts thus choose in the same steps, and steps in between are launched ahead. A comparison of predictions with the
text (`PROBES`) may end the time without drafts earlier.
"""
TRIED_TEXTS = 8
"""While drafts do not pay, the head still reads the prompt of one in this many requests. If its predictions are right,
drafts begin again.
"""


def _common_step(step: int) -> int:
    """Number of the first step, from `step` on, in which all texts without drafts decide again whether to draft."""
    return -(-step // REST_STEPS) * REST_STEPS


class HeadDrafter:
    """Drafts with a draft head of the model.

    head: the draft head. num_tokens: longest draft of a sequence.
    max_batch_tokens: largest number of tokens in one pass of the head.
    relative_cost: assumed duration of a pass, as part of a step of the model, until passes were measured.
    repeats: whether the model computes accepted tokens again after a wrong draft, as a model with mixers does.
    seconds: duration of the passes before the current step.
    passes: runs the passes, after `allocate`.
    pool, runner: None, because the head uses the blocks of the model.
    """

    pool: BlockManager | None = None
    runner: Runner | None = None

    def __init__(
        self, head: DraftHead, num_tokens: int, max_batch_tokens: int, relative_cost: float, repeats: bool = False
    ) -> None:
        self.head = head
        self.num_tokens, self.max_batch_tokens = num_tokens, max_batch_tokens
        self.costs: StepCosts | None = StepCosts()
        self.head_costs = HeadCosts(self.costs, relative_cost, repeats)
        self.seconds = 0.0
        self._rates = HeadRates(num_tokens)
        self._texts: dict[SequenceGroup, HeadText] = {}
        self._pays = True
        self._step = 0
        self._due_step: int | None = None

    def allocate(self, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        """Allocate the cache of the head. num_blocks, block_size: as in the model's cache. dtype: of keys and values.

        Raises RuntimeError or OSError if there is too little memory.
        """
        cache = KVCache(self.head.config.attention_layers, num_blocks, block_size, dtype, self.head.device)
        self.passes = HeadPasses(self.head, cache)
        self._filled = FilledBlocks(block_size)

    @property
    def cache(self) -> KVCache:
        """Keys and values of the head."""
        return self.passes.cache

    def capture(self, limits: GraphSizes, time: CaptureTime) -> dict[Part, str]:
        """Capture the passes of the head as CUDA graphs.

        Passes over more tokens of a text than a draft has run eagerly.
        """
        rows = min(limits.rows, drafts.MAX_DRAFTING_ROWS)
        tokens = min(rows * (self.num_tokens + 1), self.max_batch_tokens)
        return self.passes.capture(GraphSizes(rows, limits.context, tokens=tokens), time)

    # ------------------------------------------------------------------------------------------- before the step

    def propose(self, groups: Sequence[SequenceGroup], num_rows: int) -> None:
        """Choose the length of each draft. The draft tokens are placeholders until `complete` computes them."""
        self.seconds, self._due_step = 0.0, None
        if num_rows > drafts.MAX_DRAFTING_ROWS:
            self._texts.clear()
            return
        found: list[tuple[HeadText, CachedSequence, list[float]]] = []
        for group in groups:
            (sequence,) = group.sequences
            text = self._texts.get(group)
            if text is None or not text.belongs_to(sequence):
                continue
            text.settle(sequence.tokens)
            count, known = max_draft_tokens(group, self.num_tokens), len(sequence.tokens) - 1
            if text.choice_step <= self._step and count > 0 and text.end >= known > text.start:
                found.append((text, sequence, text.probabilities(count)))
        assert self.costs is not None
        if found and self.costs.has_baseline(num_rows):
            lengths = head_draft_lengths([row for _, _, row in found], num_rows, self.head_costs)
            self._pays = any(lengths)
            for (text, sequence, _), length in zip(found, lengths, strict=True):
                sequence.draft = sequence.tokens[-1:] * length
                text.choice_step = self._step + 1 if length else _common_step(self._step + 1)

    def waits_for_tokens(self, groups: Sequence[SequenceGroup], num_rows: int) -> bool:
        """Whether the next step may have drafts, or the head must read a text before it.

        In both cases, all tokens before the step must be known when it is scheduled.
        """
        assert self.costs is not None
        if num_rows > drafts.MAX_DRAFTING_ROWS or not self.costs.has_baseline(num_rows):
            return False
        if self._due_step is None:
            steps = [
                min(text.choice_step, _common_step(text.read_step + text.patience))
                for group, text in self._texts.items()
                if text.belongs_to(group.sequences[0])  # not a preempted group, for which nothing is due
            ]
            if not steps:
                return False
            self._due_step = min(steps)
        return self._due_step <= self._step

    def skip_step(self) -> None:
        """Count a step for which the head had nothing to do, and that was launched without `complete`."""
        self._step, self.seconds = self._step + 1, 0.0

    @torch.inference_mode()
    def complete(self, schedule: Schedule) -> None:
        """Compute the draft tokens of a schedule.

        Also let the head read new pairs of texts without drafts, if it is time.
        """
        started = time.perf_counter()
        drafting, others = [], []
        scheduled = {group for group in schedule.decoding if group.sequences[0].draft}
        for group, text in list(self._texts.items()):
            (sequence, *_) = group.sequences
            if not text.belongs_to(sequence):
                continue
            end = text.known_pairs(sequence)
            if group in scheduled:
                text.read_step, text.patience = self._step, CATCH_UP_TOKENS
                drafting.append(HeadPart(group, text, text.written, end, 1, True, []))
            elif not group.is_ready_to_decode or group.num_generated <= PROBES:
                if end - text.written >= CATCH_UP_TOKENS:
                    others.append(HeadPart(group, text, text.written, end, 0, False, []))
            elif self._is_due(text, end):
                others.append(HeadPart(group, text, text.written, end, PROBES + 1, False, []))
        is_usual = not others and all(part.num_pairs <= self.num_tokens + 1 for part in drafting)
        self._first_pass([*drafting, *others])
        if drafting and is_usual:
            self.head_costs.observe(len(drafting), time.perf_counter() - started, is_first=True)
        rows = self._unfinished(drafting)
        while rows:
            passed = time.perf_counter()
            self._later_pass(rows)
            self.head_costs.observe(len(rows), time.perf_counter() - passed, is_first=False)
            rows = self._unfinished(rows)
        for part in drafting:
            # Tokens that the head could not compute keep their place in the step, and are verified as all others.
            part.sequence.draft[: len(part.draft)] = part.draft
            part.text.drafted(len(part.sequence.tokens), part.draft)
        self._step, self._due_step = self._step + 1, None
        self.seconds = time.perf_counter() - started

    def _is_due(self, text: HeadText, end: int) -> bool:
        """Whether the head should now read the unread pairs of a text without drafts.

        If many pairs are unread, the older ones are skipped. end: position after the last known pair.
        """
        size = self.cache.block_size
        if end - text.written > 2 * CATCH_UP_TOKENS:
            text.skip((end - CATCH_UP_TOKENS) // size * size)
        if self._step < text.read_step + text.patience or end - text.written < CATCH_UP_TOKENS:
            return False
        text.read_step, text.patience = self._step, min(2 * text.patience, MAX_PATIENCE)
        return True

    def _unfinished(self, parts: Sequence[HeadPart]) -> list[HeadPart]:
        return [part for part in parts if part.hidden is not None and len(part.draft) < len(part.sequence.draft)]

    def _first_pass(self, parts: Sequence[HeadPart]) -> None:
        """Let the head read all pairs of the parts, in passes of at most `max_batch_tokens` pairs.

        At the last positions of each part, as many as its `outputs`, it also predicts the next token.
        """
        waiting = deque(part for part in parts if part.num_pairs)
        while waiting:
            room, taken = self.max_batch_tokens, list[HeadPart]()
            while waiting and room:
                fits = waiting[0].num_pairs <= room
                taken.append(waiting.popleft() if fits else waiting[0].take(room))
                room -= taken[-1].num_pairs
            self._read(taken)

    def _read(self, parts: Sequence[HeadPart]) -> None:
        """Run the head once over pairs whose hidden states come from the model."""
        tokens = [part.sequence.tokens[part.first + 1 : part.end + 1] for part in parts]
        states = torch.cat(list(chain.from_iterable(part.text.take(part.end) for part in parts)))
        found = self.passes.run(parts, list(chain.from_iterable(tokens)), self.head.combined(states))
        self._record_written(parts)
        if found is not None:
            self._predict(parts, found)

    def _later_pass(self, parts: Sequence[HeadPart]) -> None:
        """Run the head once over the last draft token of each part. The state before that token is the head's own."""
        for part in parts:
            part.first, part.end = part.end, part.end + 1
        states = torch.cat([part.hidden for part in parts if part.hidden is not None])
        found = self.passes.run(parts, [part.draft[-1] for part in parts], states)
        self._record_written(parts)
        assert found is not None
        self._predict(parts, found)

    def _record_written(self, parts: Sequence[HeadPart]) -> None:
        for part in parts:
            self._filled.write(part.text, part.sequence, part.first, part.end)

    # ----------------------------------------------------------------------------------------------- predictions

    def _predict(self, parts: Sequence[HeadPart], found: Predicted) -> None:
        """Append predicted tokens to drafts. In parts that do not draft, compare the predictions with the text."""
        places = []
        for part in parts:
            text = [*part.sequence.tokens, *part.draft]
            ends = range(part.end - part.outputs + 2, part.end + 2)
            places += [SamplingPosition(part.group, text, end) for end in ends]
        tokens, is_valid, is_finite = self._choose(found, places)
        row = 0
        for part in parts:
            own = slice(row, row + part.outputs)
            row += part.outputs
            if not all(is_finite[own]):
                part.hidden = None
                self._drop(part)
            elif part.drafts:
                part.hidden = found.hidden[row - 1 : row] if is_valid[row - 1] else None
                part.draft += tokens[own] if is_valid[row - 1] else []
            elif part.outputs:
                # The last prediction is that of a token which the model has not chosen yet.
                part.text.choice_step = 0
                ends = range(part.end - part.outputs + 2, part.end + 1)
                for token, end in zip(tokens[own], ends, strict=False):
                    part.text.observe(0, token == part.sequence.tokens[end])

    def _choose(self, found: Predicted, places: Sequence[SamplingPosition]) -> tuple[list[int], list[bool], list[bool]]:
        """Choose a token for each row as the model would, with the same random numbers.

        Returns the tokens, whether each is possible, and whether the logits of its row are finite.
        """
        best, logits, token_ids = HostTopK.of(found.top_k), found.logits, self.head.token_ids
        if token_ids is not None:
            if any(place.group.tables.change_logits or place.group.params.do_sample for place in places):
                whole = logits.new_full((len(logits), self.head.vocab_size), -torch.inf)
                logits = whole.index_copy_(1, token_ids, logits)
            best = best._replace(ids=self._ids_of_logits[best.ids])
        return *choose(logits, places, best), best.is_finite.tolist()

    @cached_property
    def _ids_of_logits(self) -> Ids:
        """Token id of each logit of an EAGLE-3 head, whose vocabulary is smaller than the model's: [logits], int64."""
        assert self.head.token_ids is not None
        ids: Ids = self.head.token_ids.cpu().numpy()
        return ids

    def _drop(self, part: HeadPart) -> None:
        """Stop drafting for a group whose logits are not finite, and clear what the head has written for it."""
        part.group.accepts_drafts = False
        self._texts.pop(part.group, None)
        self.clear(part.text.table)

    # -------------------------------------------------------------------------------------------- after the step

    def needs_all_states(self, schedule: Schedule) -> bool:
        """Whether a step must compute the final hidden states of all its tokens, because the head reads them later."""
        if self.head.config.target_layers or schedule.num_rows > drafts.MAX_DRAFTING_ROWS:
            return False
        rows = schedule.chunks if schedule.is_plain else schedule.rows
        return any(row.num_tokens > 1 and self._follows(row) for row in rows)

    def observe(self, rows: Sequence[ScheduledRow], starts: Sequence[int], states: Tensor) -> None:
        """Keep the hidden states of a step. Call it before the step counts as computed.

        rows: rows of the step. starts: position of the first token of each row.
        states: for each token of the step, what the head reads: final hidden states, or the layer inputs.
        """
        if len(rows) > drafts.MAX_DRAFTING_ROWS:
            return
        end = 0
        for row, start in zip(rows, starts, strict=True):
            first, end = end, end + row.num_step_tokens
            if self._follows(row):
                self._text_of(row, start).add(start, states[first:end])

    def _follows(self, row: ScheduledRow) -> bool:
        """Whether to keep the hidden states of a row for the head.

        The head reads a new prompt if drafts pay, and otherwise one in `TRIED_TEXTS` prompts.
        """
        if not row.group.accepts_drafts:
            return False
        is_prompt = row.num_tokens > 1 + row.sequence.repeated_tokens
        return not is_prompt or row.group in self._texts or self._pays or row.group.sequence_id % TRIED_TEXTS == 0

    def _text_of(self, row: ScheduledRow, first: int) -> HeadText:
        """The `HeadText` of a row. first: position of the first token of the row.

        A new `HeadText` is made if the blocks have changed, or if hidden states of a step are missing.
        """
        text = self._texts.get(row.group)
        if text is None or not text.belongs_to(row.sequence) or first > text.end:
            start = self._filled.start(row.sequence, first)
            acceptance = None if text is None else text.acceptance
            text = HeadText(row.sequence.block_table, start, self._step, self._rates, acceptance)
            self._texts[row.group], self._due_step = text, None
            text.written, text.end = max(first, start), first
        return text

    def finish(self, group: SequenceGroup) -> None:
        """Let the head read the last pairs in published blocks of an ended group, before the blocks are freed.

        Another group that finds these blocks in the prefix cache can then continue from them.
        """
        text, (sequence, *_) = self._texts.get(group), group.sequences
        if text is None or not text.belongs_to(sequence):
            return
        end = min(text.known_pairs(sequence), sequence.published_blocks * self.cache.block_size)
        if end > text.written:
            with torch.inference_mode():
                self._first_pass([HeadPart(group, text, text.written, end, 0, False, [])])

    def forget(self, group: SequenceGroup) -> None:
        self._texts.pop(group, None)

    def clear(self, blocks: Sequence[int]) -> None:
        """Set the keys and values of some blocks to zero, because they may not be finite."""
        self._filled.forget(blocks)
        self.cache.clear(blocks)

    def give_back(self) -> None:
        """Return the memory of the cache to the system. No block may be in use."""
        self._filled.forget_all()
        self.cache.give_back()
