"""A state machine over the whole engine: scheduler, block manager, prefix cache, beams, drafts and grammars together.

The model is fake. Its cache stores tokens instead of keys and values, and its logits depend on the text that a row
finds in the cache through its block table. A wrong, freed or overwritten block therefore changes the text of an answer,
and every answer is compared with the one that its request gets alone.

With steps ahead, a fake of captured steps computes each launched step at once, as a device computes them in order,
and gives its results to the engine when they are read. For beams it keeps the slots of each row's text, as a device
does.

A fake model with mixers also keeps the text that it has read in a slot of a state memory, in place of a state. The text
must be the one in the cache.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from models.backends.choice import backend
from models.backends.logits import DecoderOutput, LogitsRequest
from models.backends.torch.backend import TORCH
from models.backends.torch.beams import Beams, SearchResults
from models.backends.torch.sampling import Filters
from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.cache.lane_blocks import SlotCopies
from server.engine.cache.state_tables import StateBlockTables
from server.engine.device.captured_searches import searches_of
from server.engine.device.captured_steps import RowChoices
from server.engine.drafting.drafts import NgramDrafter
from server.engine.grammars.grammar_masks import GrammarMasks
from server.engine.grammars.grammar_waits import GrammarWaits
from server.engine.scheduling.model_limits import ModelLimits
from server.engine.scheduling.schedule import Schedule, ScheduledRow
from server.engine.scheduling.scheduler import Scheduler
from server.engine.sequences.sequence import SequenceGroup, SequenceStatus
from server.engine.stepping.engine import Engine, ModelEngine
from server.engine.stepping.generation_engine import GenerationEngine
from server.ipc.wire.messages import Generate, Hypothesis, StepOutput
from server.ipc.wire.sections import AnswerSection
from server.operations.generating.grammar import answer_rule, assemble
from tests.engine.speculative import FreeSteps
from tests.engine.stored_logits import StoredLogits
from tests.ipc.one_row import one_row

END, STOP = 1, 2
TOKENS = [b"", b"", b"", *(bytes([letter]) for letter in b"abcdefghijklmnopq")]
VOCAB = len(TOKENS)
GRAMMAR = assemble(answer_rule(False), {"text": '{"lark_grammar": "start: /[a-e]{3,9}|(fgh|fg){1,4}/"}'})
STEMS = [[], [5, 6, 7, 8, 9, 10, 11, 12, 13], [5, 6, 7, 8, 9, 4], [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]]
"""Beginnings of prompts; two of them begin alike."""
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 1.3},
    "penalised": {"repetition_penalty": 1.5},
    "stopped": {"do_sample": True, "stop_token_ids": [STOP]},
    "scored": {"logprobs": True, "top_logprobs": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "streamed beams": {"num_beams": 2, "stream": True},
    "banned beams": {
        "num_beams": 4,
        "min_new_tokens": 5,
        "suppress_token_ids": [7],
        "stop_token_ids": [STOP, 3],
        "forced_eos_token_id": END,
        "early_stopping": True,
    },
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.7},
    "grammar": {"do_sample": True, "sections": [AnswerSection(grammar=GRAMMAR)]},
    "beams with a grammar": {"num_beams": 2, "sections": [AnswerSection(grammar=GRAMMAR)]},
}
AHEAD_KINDS = ("greedy", "beams", "sampled", "streamed beams", "stopped", "banned beams")
"""Kinds whose tokens or beams the device can choose."""


@lru_cache(maxsize=1 << 16)
def logits_after(text: tuple[int, ...]) -> torch.Tensor:
    """Logits that the fake model computes for the next token after a text.

    They depend on the whole text, but most on its last two tokens, so that generated texts repeat themselves.
    """
    near = np.random.default_rng([7, *text[-2:]]).normal(size=VOCAB) * 3
    far = np.random.default_rng([9, *text]).normal(size=VOCAB)
    return torch.from_numpy((near + far).astype(np.float32))


CHUNK_TOKENS = 4
"""Length of the chunks of the fake model with mixers."""


class CachedTextRunner:
    """Runner of the fake model.

    broken: ids of requests whose rows have logits that are not finite.
    captured, captured_searches: captured steps; None without them.
    num_copied: number of copies between blocks.
    states: text in each slot of the state memory, with the number of its tokens that ran in chunks.
    """

    device = torch.device("cpu")

    def __init__(self, block_size: int, max_logits_rows: int) -> None:
        self.model = StoredLogits(max_logits_rows)
        self.block_size = block_size
        self.cache: dict[int, int | None] = {}
        self.broken: set[int] = set()
        self.captured: CapturedTexts | None = None
        self.captured_searches: CapturedSearchTexts | None = None
        self.num_copied = 0
        self.states: dict[int, tuple[tuple[int, ...], int]] = {}

    def run(self, schedule: Schedule, logits: LogitsRequest | None = None) -> tuple[DecoderOutput, torch.Tensor | None]:
        self.copy_blocks(schedule.copies)
        outputs = []
        for row in schedule.rows:
            sequence, start = row.sequence, row.sequence.num_computed_tokens
            tokens = [*sequence.tokens[start : start + row.num_tokens], *sequence.draft]
            is_broken = row.group.sequence_id in self.broken
            for position, token in enumerate(tokens, start):
                self.cache[self.slot(sequence.block_table, position)] = None if is_broken else token
        if any(row.sequence.state is not None for row in schedule.rows):
            self.run_states(schedule)
        for row in schedule.rows:
            sequence = row.sequence
            end = sequence.num_computed_tokens + row.num_tokens + len(sequence.draft)
            text = [self.cache.get(self.slot(sequence.block_table, position)) for position in range(end)]
            if row.needs_logits:
                ends = range(end - len(sequence.draft), end + 1)
                outputs += [self.logits_of(row.group, text[:stop]) for stop in ends]
        hidden = torch.stack(outputs) if outputs else torch.zeros(0, VOCAB)
        found = self.model.logits_top_k(hidden, logits) if logits is not None else ()
        return DecoderOutput(hidden, *found), None

    def copy_blocks(self, copies: Sequence[tuple[int, int, int, int]]) -> None:
        size = self.block_size
        self.num_copied += len(copies)
        for source, destination, first, end in copies:
            for offset in range(first, end):
                self.cache[destination * size + offset] = self.cache.get(source * size + offset)

    def copy_slots(self, copies: Sequence[SlotCopies]) -> None:
        for sources, destinations in copies:
            tokens = [self.cache.get(slot) for slot in sources.tolist()]
            self.cache |= dict(zip(destinations.tolist(), tokens, strict=True))

    def run_states(self, schedule: Schedule) -> None:
        """Extend the text of each state by its tokens, and check that no row reads what another one writes."""
        parts = [(row, part) for row in schedule.rows for part in row.sequence.state.parts]
        for row, part in parts:
            others = [other for owner, other in parts if owner is not row]
            assert part.slot not in [slot for other in others for slot in (other.source, other.slot)], "a shared slot"
        for row in schedule.rows:
            sequence, place = row.sequence, row.sequence.num_computed_tokens
            prompt = row.group.num_prompt_tokens
            tokens = [*sequence.tokens, *sequence.draft]
            for part in sequence.state.parts:
                text, chunked = ((), 0) if part.source is None else self.states[part.source]
                assert text == tuple(tokens[:place]), "a row starts from the state of another text"
                assert chunked == min(place, prompt), "a token of the state ran in the wrong form"
                place += part.num_tokens
                assert not part.is_prompt or (len(text) % CHUNK_TOKENS == 0 and place <= prompt)
                assert part.is_prompt or len(text) >= prompt
                self.states[part.slot] = tuple(tokens[:place]), chunked + part.is_prompt * part.num_tokens

    def slot(self, table: list[int], position: int) -> int:
        return table[position // self.block_size] * self.block_size + position % self.block_size

    def logits_of(self, group: SequenceGroup, text: list[int | None]) -> torch.Tensor:
        if group.sequence_id in self.broken:
            return torch.full((VOCAB,), torch.nan)
        known = [token for token in text if token is not None]
        assert len(known) == len(text), "a row reads values that are not finite, or that nobody wrote"
        return logits_after(tuple(known))

    def clear(self, self_blocks: list[int], cross_blocks: list[int]) -> None:
        for block in self_blocks:
            for offset in range(self.block_size):
                self.cache[block * self.block_size + offset] = 0


DEVICE_FILTERS = ("temperature", "top_k", "top_p", "min_p")
"""Filters that captured steps implement. `test_ahead_fields` compares them with the code for the device."""


def device_filters(row: Filters) -> Filters:
    """The settings of a row as a device applies them: without the filters that captured steps do not have."""
    return Filters(**{name: getattr(row, name) for name in DEVICE_FILTERS})


class LaunchedTokens:
    """Tokens of a launched step. log: gets an entry when they are read."""

    def __init__(self, tokens: list[int], log: list[str]) -> None:
        self._tokens, self._log = tokens, log

    def read(self) -> list[int]:
        self._log.append("read")
        return self._tokens


class CapturedTexts:
    """Captured steps of the fake model, in place of `CapturedSteps`. log: launches and reads in their order."""

    def __init__(self, runner: CachedTextRunner) -> None:
        self.runner = runner
        self.log: list[str] = []
        self._chosen: list[int] = []

    def run(self, rows: Sequence[ScheduledRow], logits: LogitsRequest) -> None:
        """Return None, for no captured step: steps whose results are read at once are computed by the runner."""

    def launch(
        self, rows: Sequence[ScheduledRow], choices: RowChoices, after: Sequence[ScheduledRow] | None = None
    ) -> LaunchedTokens | None:
        if any(row.num_tokens != 1 or row.sequence.draft or not row.needs_logits for row in rows):
            return None
        assert self.log.count("launch") - self.log.count("read") <= 1, "more than two steps are under way"
        self.log.append("launch")
        runner, found = self.runner, []
        for row in rows:
            sequence, position = row.sequence, row.sequence.num_computed_tokens + (after is not None)
            place = None if after is None else [scheduled.sequence for scheduled in after].index(sequence)
            token = sequence.tokens[position] if place is None else self._chosen[place]
            is_broken = row.group.sequence_id in runner.broken
            runner.cache[runner.slot(sequence.block_table, position)] = None if is_broken else token
            text = [runner.cache.get(runner.slot(sequence.block_table, at)) for at in range(position + 1)]
            found.append(runner.logits_of(row.group, text))
        logits = torch.stack(found)
        tokens = chosen_tokens(logits, choices)
        self._chosen = tokens.tolist()
        return LaunchedTokens(torch.where(logits.isfinite().all(-1), tokens, -1).tolist(), self.log)


def chosen_tokens(logits: torch.Tensor, choices: RowChoices) -> torch.Tensor:
    tokens, sampled = logits.argmax(-1), [i for i, choice in enumerate(choices.filters) if choice.temperature > 0]
    if sampled:
        filters, uniforms = [device_filters(choices.filters[i]) for i in sampled], choices.uniforms[sampled]
        own = logits[sampled].nan_to_num()
        tokens[sampled] = backend(own).draw(own, filters, uniforms).tokens
    return tokens


class LaunchedSearches(LaunchedTokens):
    """Results of a launched step with beam searches."""

    def __init__(self, tokens: list[int], results: torch.Tensor, log: list[str]) -> None:
        super().__init__(tokens, log)
        self._results = results

    def read_searches(self) -> SearchResults:
        return SearchResults.of(self._results.numpy())


class CapturedSearchTexts:
    """Captured steps with beam searches of the fake model, in place of `CapturedSearches`.

    slots: for each row of the last step, the slots of its text.
    num_later: number of steps that were launched before the last one was read.
    """

    def __init__(self, captured: CapturedTexts) -> None:
        self.runner, self.log = captured.runner, captured.log
        self.slots: list[list[int]] = []
        self.num_later = 0
        self._beams: Beams | None = None

    def launch(
        self,
        rows: Sequence[ScheduledRow],
        choices: RowChoices,
        find_candidates: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        after: Sequence[ScheduledRow] | None = None,
    ) -> LaunchedSearches | None:
        if any(row.num_tokens != 1 or row.sequence.draft or not row.needs_logits for row in rows if after is None):
            return None
        runner, groups = self.runner, list(dict.fromkeys(row.group for row in rows))
        searches = searches_of(groups)
        count = max(searches.num_candidates)
        if count > VOCAB:
            return None
        assert self.log.count("launch") - self.log.count("read") <= 1, "more than two steps are under way"
        self.log.append("launch")
        self.num_later += after is not None
        lanes = [scheduled.sequence for scheduled in after or ()]
        texts, slots_of_rows, scores = [], [], []
        for row in rows:
            sequence, position = row.sequence, row.sequence.num_computed_tokens + (after is not None)
            if after is None:
                slots = [runner.slot(sequence.block_table, at) for at in range(position)]
                token = sequence.tokens[position]
                search = row.group.beams
                scores.append(
                    0.0 if search is None else search.running_beams.scores[row.group.sequences.index(sequence)]
                )
            else:
                place = lanes.index(sequence)
                slots = self.slots[int(self._beams.parents[place])]
                token = int(self._beams.tokens[place])
                scores.append(float(self._beams.scores[place]))
            slots_of_rows.append([*slots, runner.slot(sequence.block_table, position)])
            runner.cache[slots_of_rows[-1][-1]] = None if row.group.sequence_id in runner.broken else token
        self.slots = slots_of_rows
        for row, slots in zip(rows, self.slots, strict=True):
            texts.append(runner.logits_of(row.group, [runner.cache.get(slot) for slot in slots]))
        logits = torch.stack(texts)
        tokens, is_finite = chosen_tokens(logits, choices), logits.isfinite().all(-1)
        top_k = backend(logits).logits_top_k(logits, count, True)
        found = find_candidates(logits, top_k, groups, int(after is not None))
        self._beams = Beams(tokens, torch.arange(len(rows)), torch.zeros(len(rows)))
        columns = torch.from_numpy(searches.columns())
        results = TORCH.choose_beams(*found, is_finite, torch.tensor(scores), columns, count, self._beams)
        return LaunchedSearches(torch.where(is_finite, tokens, -1).tolist(), results, self.log)


def capture(runner: CachedTextRunner) -> None:
    """Let a runner launch steps ahead, with and without beams."""
    runner.captured = CapturedTexts(runner)
    runner.captured_searches = CapturedSearchTexts(runner.captured)


def make_engine(
    block_size: int, blocks: int, tokens: int, rows: int, prefix: bool, drafts: bool, part: int, states: int = 0
) -> Engine:
    """An engine with the fake model.

    part: logits rows that are computed at once. states: slots of the state memory; 0 for a model without mixers.
    """
    pool = BlockManager(blocks, block_size)
    tables = BlockTables(pool, None, prefix)
    if states:
        tables = StateBlockTables(pool, BlockManager(states, 1), prefix, chunk_tokens=CHUNK_TOKENS)
    scheduler = Scheduler(tables, tokens, rows)
    drafter = NgramDrafter(4, FreeSteps()) if drafts else None
    runner = CachedTextRunner(block_size, part)
    generation = GenerationEngine("fake", scheduler, runner, ModelLimits(VOCAB, 1024), drafter)
    engine = Engine({"fake": ModelEngine("fake", generation)}, torch.device("cpu"))
    generation.grammar_waits = GrammarWaits(grammar_masks())
    return engine


@cache
def grammar_masks() -> GrammarMasks:
    """The compiled grammar of the tests. All engines share it, so that it is compiled once."""
    return GrammarMasks(TOKENS, VOCAB)


Spec = tuple[str, int, int, int, int]
"""A request: key of `KINDS`, index of its prompt beginning in `STEMS`, number of further prompt tokens, maximum number
of new tokens, seed."""


def message(sequence_id: int, spec: Spec) -> Generate:
    kind, stem, more, limit, seed = spec
    prompt = [*STEMS[stem], *(3 + (seed + 5 * place) % (VOCAB - 3) for place in range(more))]
    given = {"max_new_tokens": limit, "end_token_ids": [END], "seed": seed, **KINDS[kind]}
    return one_row(sequence_id, "fake", prompt, **given)


@lru_cache(maxsize=1 << 14)
def alone(spec: Spec) -> tuple[str, list[Hypothesis]]:
    """Code of the failure (or empty) and hypotheses that a request gets alone, with a large pool and neither cache nor
    drafts.
    """
    engine = make_engine(8, 512, 512, 64, False, False, 64)
    engine.add(message(0, spec))
    while engine.has_work:
        output = engine.step()
        for end in output.finished if output is not None else ():
            return "", end.hypotheses
        for failed in output.failed if output is not None else ():
            return failed.code, []
    raise AssertionError("the request never ended")


class EngineStates(RuleBasedStateMachine):
    """Requests that come, run, are aborted, time out and break; answers and blocks are checked after each step.

    prefix, drafts, states: whether the engine has a prefix cache, drafts tokens, and has a model with mixers.
    ahead: whether it launches steps ahead. Most requests are then of the kinds that allow it.
    seen: what happened in all runs since `explore` began.
    """

    prefix: ClassVar[bool] = False
    drafts: ClassVar[bool] = False
    states: ClassVar[bool] = False
    ahead: ClassVar[bool] = False
    seen: ClassVar[Counter[str]] = Counter()

    @initialize(
        block_size=st.sampled_from([1, 2, 4]),
        room=st.integers(40, 120),
        tokens=st.sampled_from([3, 8, 64]),
        rows=st.sampled_from([5, 8, 16]),
        part=st.sampled_from([3, 64]),
    )
    def start(self, block_size: int, room: int, tokens: int, rows: int, part: int) -> None:
        slots = (7 + room % 12) * self.states
        self.engine = make_engine(block_size, room // block_size, tokens, rows, self.prefix, self.drafts, part, slots)
        generation = self.engine.models["fake"].generation
        assert generation is not None
        if self.ahead:
            capture(generation.runner)
        self.generation = generation
        self.specs: dict[int, Spec] = {}
        self.groups: dict[int, SequenceGroup] = {}
        self.tokens: dict[int, list[int]] = {}
        self.ended: set[int] = set()
        self.aborted: set[int] = set()
        self.expired: set[int] = set()
        # Each kind of request is added in turn, because the random choices of hypothesis may leave a kind out: they
        # depend on the constants in our sources.
        self.add(sorted(KINDS)[self.seen["runs"] % len(KINDS)], stem=1, more=3, limit=9, seed=1)
        for number in range(3 * self.ahead):
            kind = AHEAD_KINDS[(number + self.seen["runs"]) % len(AHEAD_KINDS)]
            self.add(kind, stem=1, more=2, limit=20, seed=2 + number)

    @rule(
        kind=st.sampled_from(sorted(KINDS)),
        stem=st.integers(0, len(STEMS) - 1),
        more=st.integers(1, 6),
        limit=st.integers(1, 24),
        seed=st.integers(0, 3),
    )
    def add(self, kind: str, stem: int, more: int, limit: int, seed: int) -> None:
        if self.ahead and seed > 0:
            kind = sorted(AHEAD_KINDS)[len(self.specs) % len(AHEAD_KINDS)]
        sequence_id, spec = len(self.specs), (kind, stem, more, limit, seed)
        self.specs[sequence_id], self.tokens[sequence_id] = spec, []
        self.engine.add(message(sequence_id, spec))
        if sequence_id in self.engine._requests:
            self.groups[sequence_id] = self.engine._requests[sequence_id][1]

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.take(self.engine.step())
            self.check_blocks()

    @rule(place=st.integers(0, 30))
    def abort(self, place: int) -> None:
        living = self.living()
        if living:
            sequence_id = living[place % len(living)]
            if sequence_id in self.engine._requests:
                self.aborted.add(sequence_id)  # a refused request fails instead
            self.engine.abort(sequence_id)

    @rule(place=st.integers(0, 30))
    def pass_deadline(self, place: int) -> None:
        living = self.living()
        if living:
            self.expired.add(living[place % len(living)])
            heapq.heappush(self.engine._deadlines, (0.0, living[place % len(living)]))

    @rule(place=st.integers(0, 30))
    def break_row(self, place: int) -> None:
        living = self.living()
        if living:
            self.generation.runner.broken.add(living[place % len(living)])

    @rule(place=st.integers(0, 30))
    def preempt(self, place: int) -> None:
        running = self.generation.scheduler.running
        if running and self.generation._ahead.next is None:
            self.generation.scheduler._preempt(running[place % len(running)])

    @invariant()
    def blocks_are_counted(self) -> None:
        if hasattr(self, "engine"):
            self.check_blocks()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        steps = 0
        while self.engine.has_work:
            self.step(1)
            steps += 1
            assert steps < 20_000, "the engine does not finish"
        assert set(self.specs) == self.ended | self.aborted, "a request never ended"
        blocks = self.generation.scheduler.blocks
        assert all(pool.used_blocks == 0 for pool in blocks.pools.values()), "blocks are left"
        self.seen["runs"] += 1
        self.seen["requests"] += len(self.specs)
        self.seen["aborted"] += len(self.aborted)
        self.seen["preemptions"] += self.generation.scheduler.num_preemptions
        self.seen["prefix hits"] += blocks.num_prefix_hits
        self.seen["accepted drafts"] += self.generation.num_accepted_tokens
        if self.ahead:
            log = self.generation.runner.captured.log
            assert log.count("launch") == log.count("read"), "a launched step was not read"
            self.seen["ahead"] += sum(pair == ("launch", "launch") for pair in itertools.pairwise(log))
            self.seen["searches ahead"] += self.generation.runner.captured_searches.num_later

    # -------------------------------------------------------------------------------------------------- checks

    def living(self) -> list[int]:
        return [sequence_id for sequence_id in self.specs if sequence_id not in self.ended | self.aborted]

    def take(self, output: StepOutput | None) -> None:
        """Check the events of one engine step, and add its tokens to the texts so far."""
        if output is None:
            return
        for event in output.tokens:
            assert event.sequence_id not in self.ended | self.aborted, "tokens after the end"
            self.tokens[event.sequence_id] += event.token_ids
            self.check_beginning(event.sequence_id)
        for failed in output.failed:
            self.end(failed.sequence_id)
            if failed.code == "timeout":
                assert failed.sequence_id in self.expired
            elif failed.code == "engine_error":
                assert failed.sequence_id in self.generation.runner.broken, failed.message
            elif failed.code != "request_too_large":
                assert alone(self.specs[failed.sequence_id])[0] == failed.code
        for end in output.finished:
            self.end(end.sequence_id)
            if end.hypotheses[0].finish_reason == "timeout":
                assert end.sequence_id in self.expired
                self.check_beginning(end.sequence_id)
                continue
            code, expected = alone(self.specs[end.sequence_id])
            self.seen[self.specs[end.sequence_id][0]] += 1
            assert not code, "the request fails alone"
            assert [hypothesis.token_ids for hypothesis in end.hypotheses] == [
                hypothesis.token_ids for hypothesis in expected
            ]
            assert [hypothesis.finish_reason for hypothesis in end.hypotheses] == [
                hypothesis.finish_reason for hypothesis in expected
            ]
            assert np.allclose(
                [hypothesis.score or 0 for hypothesis in end.hypotheses],
                [hypothesis.score or 0 for hypothesis in expected],
            )

    def end(self, sequence_id: int) -> None:
        assert sequence_id not in self.ended | self.aborted, "a request ended twice"
        self.ended.add(sequence_id)

    def check_beginning(self, sequence_id: int) -> None:
        code, expected = alone(self.specs[sequence_id])
        found = self.tokens[sequence_id]
        assert code or found == expected[0].token_ids[: len(found)], "another text than alone"

    def check_blocks(self) -> None:
        """Each block has as many references as tables that hold it; requests that ended hold none."""
        pool = self.generation.scheduler.blocks.self_pool
        tables = [row.block_table for group in self.groups.values() for row in group.sequences]
        under_way = self.generation._ahead.next
        assert all(len(set(table)) == len(table) for table in tables), "a table holds a block twice"
        tables += [under_way.held] if under_way is not None else []
        owners = Counter(block for table in tables for block in table)
        assert pool.free_blocks + pool.used_blocks == pool.num_blocks
        assert pool.used_blocks == len(owners), "a block is leaked, or free and in use"
        assert all(pool.references(block) == owners[block] for block in range(pool.num_blocks)), "wrong references"
        if self.states:
            self.check_slots()
        for group in self.groups.values():
            assert group.status is not SequenceStatus.FINISHED or not any(row.block_table for row in group.sequences)

    def check_slots(self) -> None:
        """Assert that each state slot of the cache counts as many references as there are sequences that hold it."""
        pool = self.generation.scheduler.blocks.pools["state"]
        states = [row.state for group in self.groups.values() for row in group.sequences if row.state is not None]
        owners = Counter(slot for state in states for slot in state.held_slots())
        assert pool.used_blocks == len(owners), "a slot is leaked, or free and in use"
        assert all(pool.references(slot) == owners[slot] for slot in range(pool.num_blocks)), "wrong references"


def explore(count: int, steps: int = 40, states: bool = False, ahead: bool = False) -> Counter[str]:
    """Run the machine `count` times with at most `steps` rules each. Raises the error of the first failure.

    Half of the runs have a prefix cache, and of these and of the others half have drafts.
    states: the model has mixers. ahead: steps are launched ahead, without drafts.

    Returns how often each kind of request ended with its text, and counts of preemptions, prefix hits and so on.
    """
    EngineStates.seen.clear()
    combinations = list(itertools.product((True, False), (False,) if ahead else (True, False)))
    chosen = settings(
        max_examples=max(count // len(combinations), 1),
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    for prefix, drafts in combinations:
        fields = {"prefix": prefix, "drafts": drafts, "states": states, "ahead": ahead}
        machine = type("EngineStates", (EngineStates,), fields)
        with pytest.MonkeyPatch.context() as patch:
            # hypothesis draws some numbers from the constants in our sources. Any change of the sources would then
            # change all runs, and what they cover.
            patch.setattr(HypothesisProvider, "_maybe_draw_constant", lambda self, *given, **more: None)
            run_state_machine_as_test(machine, settings=chosen)
    return EngineStates.seen
