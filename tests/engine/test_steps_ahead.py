"""Steps that are launched before the tokens of the previous step are read: their order, and when this is not allowed.

`tests/engine/test_engine_states.py` compares their texts with those of requests alone.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.sequences.sequence import CachedSequence
from server.engine.stepping.engine import Engine
from server.ipc.wire.generate_messages import Generate, Hypothesis
from tests.engine.captured_texts import CapturedTexts, capture
from tests.engine.fake_engine import make_engine, message
from tests.ipc.one_row import one_row


@pytest.fixture
def engine() -> Engine:
    made = make_engine(4, 64, 64, 8, prefix=False, drafts=False, part=64)
    capture(made.models["fake"].generation.runner)
    return made


def run(engine: Engine) -> dict[int, list[int]]:
    """Run all requests to their end. Returns their new tokens, by sequence id."""
    tokens: dict[int, list[int]] = {}
    while engine.has_work:
        output = engine.step()
        for event in output.tokens if output is not None else ():
            tokens.setdefault(event.sequence_id, []).extend(event.token_ids)
    return tokens


def log_of(engine: Engine) -> list[str]:
    return engine.models["fake"].generation.runner.captured.log


def greedy(sequence_id: int, limit: int) -> Generate:
    """A greedy request without end tokens. limit: number of new tokens."""
    return one_row(sequence_id, "fake", [5, 6, 7, 8 + sequence_id], max_new_tokens=limit)


def test_each_step_is_launched_before_the_last_one_is_read(engine: Engine) -> None:
    engine.add(greedy(0, 5))
    assert len(run(engine)[0]) == 5
    # The prefill gives the first token. The engine knows which step is the last one, and launches none after it.
    assert log_of(engine) == ["launch", "launch", "read", "launch", "read", "launch", "read", "read"]


def test_a_row_at_its_limit_is_not_computed_again(engine: Engine) -> None:
    engine.add(greedy(0, 3))
    engine.add(greedy(1, 6))
    assert {key: len(tokens) for key, tokens in run(engine).items()} == {0: 3, 1: 6}
    assert log_of(engine).count("launch") == 5


def test_a_prompt_that_fits_is_computed_before_the_next_step_ahead(engine: Engine) -> None:
    engine.add(greedy(0, 20))
    for _ in range(4):
        engine.step()
    generation = engine.models["fake"].generation
    assert generation._ahead.next is not None
    engine.add(greedy(1, 4))
    engine.step()
    assert generation._ahead.next is None and len(generation.scheduler.waiting) == 1
    engine.step()
    assert len(generation.scheduler.running) == 2
    assert {key: len(tokens) for key, tokens in run(engine).items()} == {0: 20 - 6, 1: 4 - 1}


def test_a_prompt_that_does_not_fit_stops_no_step_ahead() -> None:
    made = make_engine(4, 64, 64, 1, prefix=False, drafts=False, part=64)
    runner = made.models["fake"].generation.runner
    runner.captured = CapturedTexts(runner)
    made.add(greedy(0, 6))
    made.add(greedy(1, 6))
    assert {key: len(tokens) for key, tokens in run(made).items()} == {0: 6, 1: 6}
    assert log_of(made).count("launch") == 10
    assert list(pairwise(log_of(made))).count(("launch", "launch")) == 2


def test_steps_between_drafts_are_launched_ahead() -> None:
    """A step waits for the tokens before it only while the text predicts the next ones."""
    made = make_engine(4, 64, 64, 8, prefix=False, drafts=True, part=64)
    capture(made.models["fake"].generation.runner)
    plain = make_engine(4, 64, 64, 8, prefix=False, drafts=False, part=64)
    for engine in (made, plain):
        engine.add(greedy(1, 100))
    assert run(made) == run(plain)
    generation, pairs = made.models["fake"].generation, list(pairwise(log_of(made)))
    assert generation.new_tokens.num_accepted_tokens > 0 and pairs.count(("launch", "launch")) >= 1
    assert 100 < len(log_of(made)) < 2 * (100 - 1), "a step with drafts is not launched ahead"


@pytest.mark.parametrize("kind", ["penalised", "scored", "groups", "beams with a grammar"])
def test_a_row_that_needs_the_host_is_read_at_once(engine: Engine, kind: str) -> None:
    engine.add(greedy(0, 4))
    engine.add(message(1, (kind, 0, 3, 30, 1)))
    while 1 in engine._requests:
        engine.step()
        assert engine.models["fake"].generation._ahead.next is None or 1 not in engine._requests
    run(engine)


def beams(sequence_id: int, limit: int, **params: object) -> Generate:
    """A request with three beams and without end tokens, unless `params` has some. limit: number of new tokens."""
    return one_row(sequence_id, "fake", [5, 6, 7, 8 + sequence_id], max_new_tokens=limit, num_beams=3, **params)


def finished(engine: Engine) -> dict[int, list[Hypothesis]]:
    """Run all requests to their end. Returns their hypotheses, by sequence id."""
    ends: dict[int, list[Hypothesis]] = {}
    while engine.has_work:
        output = engine.step()
        ends |= {end.sequence_id: end.hypotheses for end in output.finished} if output is not None else {}
    return ends


def alone(request: Generate) -> list[Hypothesis]:
    """The hypotheses of a request that runs alone, without captured steps."""
    made = make_engine(4, 64, 64, 8, prefix=False, drafts=False, part=64)
    made.add(request)
    return finished(made)[request.rows[0].sequence_id]


def test_steps_with_beams_are_launched_before_the_last_one_is_read(engine: Engine) -> None:
    engine.add(beams(0, 6))
    assert finished(engine)[0] == alone(beams(0, 6))
    # The first token comes from a single sequence. The engine knows which step is the last one.
    assert log_of(engine) == ["launch", "launch", "read", "launch", "read", "launch", "read", "launch", "read", "read"]
    runner = engine.models["fake"].generation.runner
    assert runner.num_copied == 0, "blocks are copied while no step but the device's own runs"


def test_searches_and_other_rows_share_steps(engine: Engine) -> None:
    engine.add(beams(0, 9, num_return_sequences=3, length_penalty=0.5))
    engine.add(one_row(1, "fake", [5, 6, 9], max_new_tokens=12, do_sample=True, temperature=1.4, seed=4))
    engine.add(beams(2, 7, early_stopping="never", end_token_ids=[3, 4, 5]))
    expected = {
        0: alone(beams(0, 9, num_return_sequences=3, length_penalty=0.5)),
        1: alone(one_row(1, "fake", [5, 6, 9], max_new_tokens=12, do_sample=True, temperature=1.4, seed=4)),
        2: alone(beams(2, 7, early_stopping="never", end_token_ids=[3, 4, 5])),
    }
    assert finished(engine) == expected
    assert list(pairwise(log_of(engine))).count(("launch", "launch")) >= 1 and log_of(engine).count("launch") >= 10


def test_beams_leave_their_lanes_for_a_step_of_the_host(engine: Engine) -> None:
    engine.add(beams(0, 20))
    for _ in range(6):
        engine.step()
    generation = engine.models["fake"].generation
    (group,) = generation.scheduler.running
    assert generation._ahead.next is not None and group.lanes is not None and group.lanes.num_steps > 2
    engine.add(message(1, ("penalised", 0, 3, 4, 1)))
    engine.step()
    assert generation._ahead.next is None and group.lanes is None
    assert [row.tokens for row in group.sequences] == [[5, 6, 7, 8, *text] for text in group.beams.running_beams.texts]
    assert finished(engine)[0] == alone(beams(0, 20))
    assert log_of(engine)[-2:] == ["read", "read"], "the beams are in lanes again"


def test_streamed_beams_run_ahead(engine: Engine) -> None:
    engine.add(beams(0, 12, stream=True, end_token_ids=[3]))
    assert run(engine)[0] == alone(beams(0, 12, end_token_ids=[3]))[0].token_ids
    assert log_of(engine).count("launch") > 3


def test_an_aborted_search_leaves_its_blocks_to_the_step_under_way(engine: Engine) -> None:
    engine.add(beams(0, 20))
    for _ in range(5):
        engine.step()
    generation = engine.models["fake"].generation
    pool = generation.scheduler.blocks.self_pool
    assert generation._ahead.next is not None
    engine.abort(0)
    assert pool.used_blocks == 3, "the block that each row of the step writes"
    assert engine.has_work and run(engine) == {}
    assert pool.used_blocks == 0 and not engine.has_work


def test_a_search_that_considers_many_continuations_is_read_at_once(engine: Engine) -> None:
    """A beam search that considers more continuations than there are tokens is not run ahead.

    The first search considers 18 of 20 tokens. The second one would consider 24.
    """
    ends = [*range(15, 20)]
    engine.add(beams(0, 4, end_token_ids=ends))
    assert finished(engine)[0] == alone(beams(0, 4, end_token_ids=ends)) and log_of(engine).count("launch") > 0
    wide = one_row(1, "fake", [5, 6, 7], max_new_tokens=4, num_beams=4, end_token_ids=ends)
    made = make_engine(4, 64, 64, 8, prefix=False, drafts=False, part=64)
    capture(made.models["fake"].generation.runner)
    made.add(wide)
    assert finished(made)[1] == alone(wide) and log_of(made) == []


def test_an_aborted_request_leaves_its_block_to_the_step_under_way(engine: Engine) -> None:
    engine.add(greedy(0, 20))
    for _ in range(3):
        engine.step()
    generation = engine.models["fake"].generation
    pool = generation.scheduler.blocks.self_pool
    assert generation._ahead.next is not None
    engine.abort(0)
    assert pool.used_blocks == 1, "the block that the step writes"
    assert engine.has_work and run(engine) == {}
    assert pool.used_blocks == 0 and not engine.has_work


def test_a_failed_launch_fails_its_requests_and_frees_all_blocks(engine: Engine) -> None:
    engine.add(greedy(0, 20))
    for _ in range(3):
        engine.step()
    generation = engine.models["fake"].generation

    def broken(*arguments: object) -> None:
        raise RuntimeError("CUDA error")

    generation.runner.captured.launch = broken
    output = engine.step()
    assert [failed.code for failed in output.failed] == ["engine_error"]
    assert generation.scheduler.blocks.self_pool.used_blocks == 0 and not engine.has_work


@pytest.mark.parametrize("is_finite", [True, False])
def test_a_held_block_is_cleared_where_the_step_was_not_finite(is_finite: bool) -> None:
    tables = BlockTables(BlockManager(4, 4), None)
    row = CachedSequence([5, 6, 7], 2, tables.self_pool.allocate(1))
    assert tables.extend_each([row]) and len(row.block_table) == 1
    row.tokens.append(8)
    row.num_computed_tokens += 1
    assert tables.extend_each([row]) and len(row.block_table) == 2
    held = tables.hold([row], [4])
    assert held == row.block_table[1:]
    tables.self_pool.release(row.block_table)
    assert tables.self_pool.used_blocks == 1
    tables.release_held(held, is_finite)
    assert tables.self_pool.used_blocks == 0 and tables.take_blocks_to_clear()[0] == ([] if is_finite else held)
