"""The engine tells the HTTP process which requests it is computing, so that their start deadline does not pass."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from server.engine.encoding import encoder_engine
from server.engine.sequences.events import EARLY_REPORT_SECONDS, REPORT_SECONDS
from server.engine.stepping import engine, generation_engine
from server.ipc.wire.encode_messages import Encode, EncodeItem
from tests.ipc.one_row import one_row
from tests.parity.checkpoints import random_ids

PROMPT = random_ids(97, [30], seed=3)[0]


class Clock:
    """Replaces the clock of the engines. now: time in seconds, which only the test changes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in (engine, generation_engine, encoder_engine):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_prompt_in_chunks_is_reported_without_tokens(pairs, clock):
    one = pairs("gpt2").engine(max_batch_tokens=8)
    one.add(one_row(0, "gpt2", PROMPT, max_new_tokens=4))
    first = one.step()
    assert (first.computing, first.tokens) == ([0], [])
    assert one.step() is None
    clock.now += REPORT_SECONDS
    again = one.step()
    assert (again.computing, again.tokens) == ([0], [])


def test_a_row_that_waits_is_not_reported(pairs, clock):
    one = pairs("gpt2").engine(max_batch_rows=1)
    for id in (0, 1):
        one.add(one_row(id, "gpt2", PROMPT, max_new_tokens=2))
    reported = []
    while one.has_work:
        output = one.step()
        reported.append((output.computing, [end.sequence_id for end in output.finished]))
        clock.now += 1
    assert [ids for ids, _ in reported if ids] == [[0], [1]]
    assert reported.index(([1], [])) > [ended for _, ended in reported].index([0])


def test_a_beam_search_that_reports_no_token_is_reported(pairs, clock):
    one = pairs("t5").engine()
    one.add(one_row(0, "t5", PROMPT, [0], max_new_tokens=30, num_beams=3))
    computing = []
    while one.has_work:
        output = one.step()
        computing.append([] if output is None else output.computing)
        clock.now += REPORT_SECONDS / 2
    assert computing[:5] == [[0], [], [0], [], [0]]


@pytest.mark.parametrize(("seconds", "is_early"), [(None, False), (5.0, True), (EARLY_REPORT_SECONDS + 1, False)])
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_start_is_reported_before_the_step_if_its_deadline_is_near(
    pairs, clock, monkeypatch, name, seconds, is_early
):
    one = pairs(name).engine(max_batch_tokens=64)
    deadline = None if seconds is None else clock.now + seconds
    part = one.models[name].generation if name == "gpt2" else one.models[name].encoding
    happened = []
    run = part._run
    monkeypatch.setattr(part, "_run", lambda *arguments: (happened.append("step"), run(*arguments))[1])
    one.send = lambda message: happened.append(message.computing)
    if name == "gpt2":
        one.add(one_row(7, name, PROMPT, max_new_tokens=2, start_deadline=deadline))
    else:
        one.add(Encode(7, name, "embed", [EncodeItem([5] * 4), EncodeItem([6] * 4)], start_deadline=deadline))
    output = one.step()
    assert happened == ([[7], "step"] if is_early else ["step"])
    assert output.tokens or output.encoded
