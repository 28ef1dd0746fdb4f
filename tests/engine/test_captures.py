"""Which steps are captured as CUDA graphs, the limits of their number and time, and messages. Needs no device."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from models.backends.cuda.graphs import graph_runner
from models.backends.cuda.graphs.captures import CaptureTime, capture_sizes
from models.backends.cuda.graphs.graph_sizes import EncoderSizes, GraphSizes
from models.backends.cuda.graphs.token_sizes import MIN_TOKENS, TOKEN_SIZES, sizes_up_to, smallest_size
from server.engine.process.captures import (
    LAUNCH_BOUND_OPERATIONS,
    capture_models,
    decoder_sizes,
    encoder_sizes,
    execution_of,
)
from server.engine.scheduling.prefill_budget import PrefillBudget
from server.ipc.wire.descriptions import EngineOptions
from tests.engine.harness import generate, run

MAX_GRAPHS, MAX_GRAPHS_BY_DEFAULT = 75, 64
"""Largest number of graphs of a model: with any settings, and with the default settings of a CUDA device."""


class Asked:
    """Replaces `Runner.capture_steps`. limits: recorded limits of each call. reasons: the value to return."""

    def __init__(self, reasons: dict[str, str] | None = None) -> None:
        self.limits: list[tuple[GraphSizes | None, EncoderSizes | None]] = []
        self.reasons = reasons or {}

    def __call__(self, decoder, encoder, time: CaptureTime) -> dict[str, str]:
        self.limits.append((decoder, encoder))
        time.num_captured += 3
        return self.reasons


def test_after_the_capture_a_model_learns_the_durations_of_its_steps_again(pairs) -> None:
    pair = pairs("gpt2")
    engine = pair.engine(kv_cache_bytes=1 << 16)
    generation = engine.models["gpt2"].generation
    run(engine, [generate(pair, 1, [5, 6, 7], max_new_tokens=3)])
    assert generation.scheduler.decode_seconds is not None

    class Captured:
        step_sizes = (256, 512, 1024)

    def capture(decoder, encoder, time) -> dict[str, str]:
        generation.runner.captured = Captured()
        return {}

    generation.runner.capture_steps = capture
    assert capture_models(engine, [pair.loaded], EngineOptions()) == {"gpt2": "CUDA graphs"}
    budget = generation.scheduler.prefill_budget
    assert generation.scheduler.decode_seconds is None
    for tokens in (16, 300) * 3:
        budget.observe(1, 0, 0.006)
        budget.observe(1, tokens, 0.021 + 3e-5 * tokens)
    assert budget.max_prefill_tokens(1, 0, 1, 1) == 1023, "a captured step is filled up"


def test_the_steps_of_a_decoder_are_captured_up_to_its_limits(pairs) -> None:
    pair = pairs("gpt2")
    engine = pair.engine(kv_cache_bytes=1 << 16, max_batch_tokens=100)
    runner = engine.models["gpt2"].generation.runner
    runner.capture_steps = asked = Asked()
    capture_models(engine, [pair.loaded], EngineOptions(max_batch_rows=7))
    pool = engine.models["gpt2"].generation.scheduler.blocks.self_pool
    room = pool.num_blocks * pool.block_size
    assert asked.limits == [(GraphSizes(7, min(pair.loaded.context_tokens, room), 0, 100), None)]
    capture_models(engine, [pair.loaded], EngineOptions(max_batch_rows=7), is_measurement=True)
    assert asked.limits[1] == (GraphSizes(7, pair.loaded.context_tokens, 0, 100), None), "the largest cache counts"


def test_encoders_and_sources_are_captured_up_to_their_limits(pairs) -> None:
    options = EngineOptions(max_batch_tokens=100, max_encode_tokens=300)
    for name, tokens in (("bert", 300), ("marian", 200)):
        pair = pairs(name)
        engine = pair.engine(max_batch_tokens=100, max_encode_tokens=300)
        found = encoder_sizes(pair.loaded, engine.models[name], options)
        assert found == EncoderSizes(tokens, min(pair.loaded.source_tokens, tokens))
    assert encoder_sizes(pairs("gpt2").loaded, pairs("gpt2").engine().models["gpt2"], options) is None


def test_steps_that_a_graph_makes_no_faster_are_not_captured(pairs) -> None:
    pair = pairs("gpt2")
    generation = pair.engine(max_batch_tokens=2048).models["gpt2"].generation
    large = replace(pair.loaded, model=replace(pair.loaded.model, parameters=70_000_000_000))
    found = decoder_sizes(large, generation, EngineOptions())
    assert found.tokens == int(LAUNCH_BOUND_OPERATIONS / (2 * 70e9 / 2))
    assert decoder_sizes(pair.loaded, generation, EngineOptions()).tokens == 2048


def test_a_model_that_cuda_refuses_to_capture_is_served_eagerly(pairs, caplog, monkeypatch) -> None:
    pair = pairs("gpt2")
    engine = pair.engine(kv_cache_bytes=1 << 16)
    model = pair.loaded.model.transformer
    monkeypatch.setattr(graph_runner, "CudaGraphRunner", lambda device: object())
    monkeypatch.setattr(model, "why_not_captured", lambda: None)

    def refuse(*given) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(model, "capture_steps", refuse)
    monkeypatch.setattr(model, "capture_mixed_steps", lambda *given: None)
    told = capture_models(engine, [pair.loaded], EngineOptions())
    assert told == {"gpt2": "eager: CUDA refuses to capture them, see the log"}
    assert "decode steps cannot be captured as CUDA graphs" in caplog.text
    assert "operation not permitted" in caplog.text
    results = run(engine, [generate(pair, 1, [5, 6, 7], max_new_tokens=3)])
    assert len(results.finished[1].hypotheses[0].token_ids) == 3


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_model_without_graphs_says_why(pairs, name: str) -> None:
    engine = pairs(name).engine(kv_cache_bytes=1 << 16)
    assert capture_models(engine, [pairs(name).loaded], EngineOptions()) == {
        name: "eager: the device has no Triton kernels"
    }


def test_parts_that_run_eagerly_beside_graphs_are_told() -> None:
    reasons = {"encoder steps": "recordings of any length"}
    assert execution_of(reasons, generates=True) == "CUDA graphs; encoder steps eager: recordings of any length"
    assert execution_of(reasons, generates=False) == "eager: recordings of any length"
    assert execution_of({}, generates=True) == "CUDA graphs"
    refused = {"prefill": "x", "decode steps": "x"}
    assert execution_of(refused, generates=True) == "eager: x"


def test_number_time_and_memory_of_the_graphs_are_logged(pairs, caplog: pytest.LogCaptureFixture) -> None:
    pair = pairs("gpt2")
    engine = pair.engine(kv_cache_bytes=1 << 16)
    engine.models["gpt2"].generation.runner.capture_steps = Asked({"prefill": "x"})
    free = iter([500 << 20, 380 << 20])
    with caplog.at_level(logging.INFO, "triptych.worker"):
        told = capture_models(engine, [pair.loaded], EngineOptions(), lambda: next(free))
    assert "model 'gpt2': captured 3 CUDA graphs in 0.0 s, which take 120 MiB" in caplog.text
    assert told == {"gpt2": "CUDA graphs; prefill eager: x"}


class CountingRunner:
    """A `GraphRunner` that records the sizes of its captures. Each takes a second of simulated time."""

    def __init__(self) -> None:
        self.captured: list[int] = []
        self.now = 0.0

    def capture(self, run):
        self.now += 1.0
        self.captured.append(run())
        return run, run()


@pytest.mark.parametrize(("seconds", "expected"), [(60.0, [4, 1, 2, 3]), (1.5, [4, 1]), (0.0, [4])])
def test_captures_end_when_their_time_is_over(seconds: float, expected: list[int]) -> None:
    """After the time limit, no further graph is captured.

    The largest graph comes first and is always captured, because it can replace all others. Then the smallest come,
    because steps of few tokens gain most.
    """
    runner = CountingRunner()
    time = CaptureTime(seconds, lambda: runner.now)
    found = capture_sizes(runner, [1, 2, 3, 4], lambda size: lambda: size, time)
    assert runner.captured == expected and list(found) == sorted(expected)
    assert (time.num_captured, time.num_left_out) == (len(expected), 4 - len(expected))


def test_a_model_has_a_bounded_number_of_graphs() -> None:
    step_graphs = pytest.importorskip("models.backends.cuda.graphs.step_graphs", reason="needs triton")
    decode, any_size = len(step_graphs.BUCKETS), len(sizes_up_to(1 << 20))
    assert decode + 2 * any_size <= MAX_GRAPHS
    tokens = EngineOptions().step_tokens("cuda")
    assert decode + len(sizes_up_to(tokens.batch)) + len(sizes_up_to(tokens.encode)) <= MAX_GRAPHS_BY_DEFAULT


def test_sizes_waste_little() -> None:
    assert list(TOKEN_SIZES) == sorted(TOKEN_SIZES)
    for tokens in range(1, TOKEN_SIZES[-1] + 1):
        size = smallest_size(TOKEN_SIZES, tokens)
        assert size is not None and size >= tokens
        if tokens > MIN_TOKENS:
            assert size <= (1.25 if tokens > 512 else 1.5) * tokens
    assert smallest_size((64, 4096), 65) is None, "an eager step is shorter than one with 4,031 unused places"
    assert smallest_size((64,), 65) is None
    assert sizes_up_to(100) == (8, 16, 32, 64, 96, 128)


def test_the_prefill_of_a_captured_step_costs_what_fills_it_up() -> None:
    """The prefill budget knows that all steps that replay the same graph take the same time.

    Steps with 130, 200 and 255 prefill tokens replay the same graph.
    """
    budget = PrefillBudget(True, step_sizes=(256, 512, 1024))
    for tokens in (130, 200, 255, 300, 500) * 3:
        budget.observe(1, 0, 0.006)
        budget.observe(1, tokens, 0.0085 if tokens < 256 else 0.011)
    limit = budget.max_prefill_tokens(1, 0, 1, 1)
    assert limit + 1 in (256, 512, 1024)
    assert budget.expected_seconds(1, 130) == budget.expected_seconds(1, 255)
    assert budget.expected_seconds(1, 130) == pytest.approx(0.0085, rel=0.05)
    assert budget.expected_seconds(1, 400) == pytest.approx(0.011, rel=0.05)
