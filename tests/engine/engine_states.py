"""A state machine over the whole engine: scheduler, block manager, prefix cache, beams, drafts and grammars together.

The model is fake (`tests/engine/cached_text_model.py`). Every answer is compared with the one that its request gets
alone.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from server.engine.sequences.sequence import SequenceGroup, SequenceStatus
from server.ipc.wire.step_messages import StepOutput
from tests.engine.captured_texts import capture
from tests.engine.fake_engine import AHEAD_KINDS, KINDS, STEMS, Spec, alone, make_engine, message


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
        self.seen["accepted drafts"] += self.generation.new_tokens.num_accepted_tokens
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
    states: the model has mixers. ahead: steps without drafts are launched ahead.

    Returns how often each kind of request ended with its text, and counts of preemptions, prefix hits and so on.
    """
    EngineStates.seen.clear()
    combinations = list(itertools.product((True, False), repeat=2))
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
