"""Only sequences wait whose grammar is not compiled yet or whose mask is late. No tokens change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from server.engine.grammars import grammar_waits
from server.engine.grammars.grammar_masks import GrammarMasks
from server.engine.grammars.grammar_waits import GrammarWaits
from server.engine.stepping.engine import Engine
from tests.engine.grammars import (
    END,
    choice_grammar,
    json_grammar,
    random_engine,
    random_request,
    record,
    regex_grammar,
)
from tests.engine.harness import Results, run

SLOW = choice_grammar(["the slow one", "a slow one", "slow"])
OTHERS = [
    random_request(10, "", max_new_tokens=30),
    random_request(11, "", max_new_tokens=30, do_sample=False, num_beams=3),
    random_request(12, regex_grammar("[a-z]{9,12}")),
    random_request(13, json_grammar(record(name={"type": "string", "maxLength": 9}))),
]


class Gate:
    """Blocks work on the grammar `SLOW` until the test opens the gate."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def wait(self) -> None:
        assert self.opened.wait(60), "nobody opened the gate"


@pytest.fixture(params=["compile", "mask"])
def gate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A gate for compiling `SLOW`, or for computing its masks."""
    made = Gate()
    compile_grammar, make = GrammarMasks._compile, GrammarMasks._make

    def gated_compile(self, grammar):
        if grammar.text == SLOW:
            grammar.started = time.monotonic()
            made.wait()
        compile_grammar(self, grammar)

    def gated_make(self, rows):
        if SLOW in rows[0][0].grammars:
            made.wait()
        make(self, rows)

    if request.param == "compile":
        monkeypatch.setattr(GrammarMasks, "_compile", gated_compile)
    else:
        monkeypatch.setattr(GrammarMasks, "_make", gated_make)
    yield made
    made.opened.set()


def step_until(engine: Engine, results: Results, is_enough: Callable[[], bool]) -> None:
    for _ in range(5000):
        if is_enough():
            return
        results.take(engine.step())
    raise AssertionError("the engine does not get on")


def texts_alone(requests) -> dict[int, list[list[int]]]:
    return {
        request.rows[0].sequence_id: run(random_engine(), [request]).texts(request.rows[0].sequence_id)
        for request in requests
    }


@pytest.mark.parametrize("settings", [{}, {"do_sample": False, "num_beams": 3}], ids=["sampled", "beams"])
def test_other_requests_end_while_a_grammar_is_slow(gate: Gate, settings: dict) -> None:
    slow = random_request(0, SLOW, **settings)
    engine, results = random_engine(), Results()
    for request in [slow, *OTHERS]:
        engine.add(request)
    step_until(engine, results, lambda: len(results.finished) == len(OTHERS))
    assert 0 not in results.tokens and engine.has_work
    gate.opened.set()
    step_until(engine, results, lambda: not engine.has_work)
    expected = texts_alone([slow, *OTHERS])
    assert {sequence_id: results.texts(sequence_id) for sequence_id in expected} == expected


def test_a_held_request_can_be_aborted(gate: Gate) -> None:
    engine, results = random_engine(), Results()
    for request in [random_request(0, SLOW), random_request(1, "", max_new_tokens=5)]:
        engine.add(request)
    step_until(engine, results, lambda: 1 in results.finished)
    engine.abort(0)
    assert not engine.has_work and set(engine.stats().kv_blocks_used.values()) == {0}
    gate.opened.set()
    after = run(engine, [random_request(2, SLOW)])
    assert after.texts(2) == texts_alone([random_request(2, SLOW)])[2]


def test_a_grammar_that_never_ends_fails_its_request(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_waits, "MAX_SECONDS", 1.0)
    engine, results = random_engine(), Results()
    for request in [random_request(0, SLOW), *OTHERS]:
        engine.add(request)
    step_until(engine, results, lambda: not engine.has_work)
    assert results.failed[0].code == "invalid_format" and "`response_format`" in results.failed[0].message
    assert sorted(results.finished) == [10, 11, 12, 13]


def test_a_held_request_that_is_preempted_gives_the_same_text(gate: Gate) -> None:
    """A request that waits for its grammar and is preempted gives the same text as alone."""
    engine, results = random_engine(blocks=12), Results()
    others = [random_request(10 + i, "", max_new_tokens=24, suppress_token_ids=[END]) for i in range(2)]
    slow = random_request(0, SLOW, max_new_tokens=30)
    for request in [*others, slow]:
        engine.add(request)
    (scheduler,) = (model.generation.scheduler for model in engine.models.values())
    step_until(engine, results, lambda: 0 in [group.sequence_id for group in scheduler.running if group.is_computed])
    scheduler.restart(next(group for group in scheduler.running if group.is_computed))
    step_until(engine, results, lambda: len(results.finished) == len(others))
    gate.opened.set()
    step_until(engine, results, lambda: not engine.has_work)
    assert results.texts(0) == texts_alone([slow])[0]


def test_requests_with_the_prompt_of_a_held_one_do_not_wait(gate: Gate) -> None:
    engine, results = random_engine(), Results()
    engine.models["random"].generation.scheduler.blocks.prefix_cache = True
    prompt = list(range(20, 61))
    slow, plain = random_request(0, SLOW), random_request(1, "", max_new_tokens=5)
    slow.prompts[0][:] = plain.prompts[0][:] = prompt
    for request in (slow, plain):
        engine.add(request)
    step_until(engine, results, lambda: 1 in results.finished)
    assert 0 not in results.finished


def test_a_step_that_ignores_late_masks_is_noticed(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: if the engine does not wait for masks, the answer of the request is wrong."""
    monkeypatch.setattr(GrammarWaits, "late", lambda self, groups, seconds: [])
    engine, results = random_engine(), Results()
    for request in [random_request(0, SLOW), *OTHERS]:
        engine.add(request)
    with suppress(AssertionError):
        step_until(engine, results, lambda: len(results.finished) == len(OTHERS))
    assert 0 in results.failed or 0 in results.tokens


def test_an_error_in_a_mask_fails_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    make = GrammarMasks._make

    def broken(self, rows):
        if SLOW in rows[0][0].grammars:
            raise ZeroDivisionError
        make(self, rows)

    monkeypatch.setattr(GrammarMasks, "_make", broken)
    results = run(random_engine(), [random_request(0, SLOW), *OTHERS])
    assert results.failed[0].code == "engine_error" and sorted(results.finished) == [10, 11, 12, 13]
    assert {i: results.texts(i) for i in results.finished} == texts_alone(OTHERS)
