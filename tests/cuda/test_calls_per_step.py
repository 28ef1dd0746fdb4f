"""Python calls of a decode step and of an encoder step, counted with a device that computes nothing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from models.backends import choice
from models.backends.cuda.graphs import graph_runner, step_graphs
from models.backends.cuda.graphs.graph_sizes import EncoderSizes, GraphSizes
from server.engine.drafting import drafts, head_drafter
from server.ipc.wire.encode_messages import Encode, EncodeItem
from tests.cuda.test_head_graphs import directories, drafted
from tests.engine.drafted_models import Drafted
from tests.engine.harness import generate
from tests.engine.still_device import StillDevice
from tests.engine.tiny_checkpoints import ENCODERS, VOCAB

__all__ = ["directories"]

CALLS_PER_STEP, CALLS_PER_ROW = 300, 2
"""Largest number of calls of a decode step: those that do not depend on its rows, and those of each row."""
CALLS_PER_FOLLOWED_ROW = 22
"""Further calls of a decode step for each row whose hidden states a draft head keeps, while drafts do not pay."""
CALLS_PER_ENCODER_STEP, CALLS_PER_TEXT = 330, 50
"""Largest number of calls of an encoder step: those that do not depend on its texts, and those of each text."""
WIDTH = ENCODERS["bert"][1].hidden_size
STEPS = 16
"""Steps of one block of the cache, so that blocks are allocated and published as often as in a long text."""


def calls_of(run: Callable[[], object]) -> Counter[str]:
    """The calls of Python and C functions while a function runs, by name."""
    calls: Counter[str] = Counter()

    def count(frame, event: str, argument) -> None:
        if event == "call":
            calls[f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            calls[f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {argument.__qualname__}"] += 1

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def calls_per_step(pair, rows: int, patch: pytest.MonkeyPatch, **params) -> Counter[str]:
    """Calls of `STEPS` steps of the engine in which all rows decode, launched ahead."""
    patch.setattr(graph_runner, "CudaGraphRunner", lambda device: StillDevice.choosing(7, rows, VOCAB))
    # The draw is five launches of kernels, whatever the rows.
    patch.setattr(step_graphs, "draw_by_columns", lambda logits, columns: (columns[1] > 0, columns[0].long()))
    engine = pair.engine(max_batch_rows=rows, block_size=STEPS, kv_cache_bytes=1 << 24)
    runner = engine.models["gpt2"].generation.runner
    with choice.using("cuda"):
        assert runner.capture_steps(GraphSizes(rows, 120)) == {}
    for number in range(rows):
        settings = {"max_new_tokens": 100, "end_token_ids": [], **params}
        engine.add(generate(pair, number, [5 + number % 50, 6 + number // 50], **settings))
    # Prompts are read in parts beside running rows. Some steps later, all steps are launched ahead.
    for _ in range(100):
        output = engine.step()
        if len(output.tokens) == rows:
            break
    for _ in range(3):
        engine.step()

    def run() -> None:
        for _ in range(STEPS):
            output = engine.step()
            assert output is not None and len(output.tokens) == rows

    return calls_of(run)


@pytest.mark.parametrize("params", [{}, {"do_sample": True, "temperature": 0.8, "seed": 3}], ids=["greedy", "sampled"])
def test_a_decode_step_makes_few_calls(pairs, monkeypatch: pytest.MonkeyPatch, params: dict) -> None:
    found = {rows: calls_per_step(pairs("gpt2"), rows, monkeypatch, **params).total() / STEPS for rows in (1, 64, 256)}
    for rows, calls in found.items():
        assert calls <= CALLS_PER_STEP + CALLS_PER_ROW * rows, f"{rows} rows: {calls:.0f} calls"


def calls_beside_a_head(model: Drafted, rows: int, patch: pytest.MonkeyPatch) -> float:
    """Calls per step of the engine in which all rows decode, and a draft head rests because no draft pays."""
    patch.setattr(graph_runner, "CudaGraphRunner", lambda device: StillDevice.choosing(7, rows, 97))
    patch.setattr(head_drafter, "head_draft_lengths", lambda probabilities, rows, costs: [0] * len(probabilities))
    engine = model.engine(max_batch_rows=rows, block_size=STEPS, kv_cache_bytes=1 << 24)
    generation = engine.models[model.name].generation
    with choice.using("cuda"):
        assert generation.runner.capture_steps(GraphSizes(rows, 120, keeps_states=True)) == {}
    for number in range(rows):
        prompt = [5 + number % 50, 6 + number // 50]
        engine.add(generate(model, number, prompt, max_new_tokens=100, end_token_ids=[]))
    for _ in range(100):
        output = engine.step()
        if len(output.tokens) == rows:
            break
    # Steps up to the next one in which the head chooses lengths.
    for _ in range(head_drafter.REST_STEPS):
        engine.step()

    def run() -> None:
        for _ in range(STEPS):
            output = engine.step()
            assert output is not None and len(output.tokens) == rows

    calls = calls_of(run).total() / STEPS
    assert bool(generation.drafter._texts) == (rows <= drafts.MAX_DRAFTING_ROWS)
    assert generation.new_tokens.num_drafted_tokens == 0
    return calls


def test_a_decode_step_beside_a_resting_head_makes_few_calls(directories, monkeypatch: pytest.MonkeyPatch) -> None:
    model = drafted(directories, "eagle3")
    for rows in (1, 16, 64):
        calls = calls_beside_a_head(model, rows, monkeypatch)
        followed = rows if rows <= drafts.MAX_DRAFTING_ROWS else 0
        most = CALLS_PER_STEP + CALLS_PER_ROW * rows + CALLS_PER_FOLLOWED_ROW * followed
        assert calls <= most, f"{rows} rows: {calls:.0f} calls"


def calls_of_texts(pair, texts: int, patch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of an engine step that embeds texts of 16 tokens, each in a request of its own."""
    patch.setattr(graph_runner, "CudaGraphRunner", lambda device: StillDevice(torch.ones(2048, WIDTH)))
    engine = pair.engine(max_encode_tokens=2048)
    with choice.using("cuda"):
        assert engine.models["bert"].encoding.runner.capture_steps(None, EncoderSizes(2048, 64)) == {}
    found: Counter[str] = Counter()
    for _ in range(2):  # the first step makes what later ones keep
        for number in range(texts):
            engine.add(Encode(number, "bert", "embed", [EncodeItem([5 + number % 9] * 16)]))
        found = calls_of(lambda: engine.step())
    return found


def test_an_encoder_step_makes_few_calls(pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    for texts in (1, 64):
        calls = calls_of_texts(pairs("bert"), texts, monkeypatch).total()
        assert calls <= CALLS_PER_ENCODER_STEP + CALLS_PER_TEXT * texts, f"{texts} texts: {calls} calls"
