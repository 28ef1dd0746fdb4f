"""Beam searches whose beams stay on the device: the same texts and scores as on the host, and as in transformers.

Without a device, the kernels run in Triton's interpreter, and a runner of the tests stands in for CUDA graphs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models.backends import choice
from models.backends.cuda.graphs import beam_graphs, graph_runner, step_graphs
from models.backends.cuda.graphs.beam_graphs import BeamGraphs
from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_runner import CudaGraphRunner
from models.backends.cuda.graphs.graph_sizes import GraphSizes
from models.checkpoint.loader import load_model
from server.engine.cache.block_tables import BlockTables
from server.ipc.wire.generate_messages import Generate
from tests.cuda.graph_runner import FakeGraphRunner
from tests.engine.harness import Pair, generate, reference, run
from tests.engine.test_speech import make_speech_pair, random_frames, transcribe

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LONG = pytest.mark.many_shapes
SIZES = GraphSizes(8, 40, 16)
ROWS = 3
"""Rows of the captured steps of these tests. The interpreter computes all of them in each step."""


@pytest.fixture
def in_kernels():
    with choice.using("cuda"):
        yield


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of rows of each launched step with searches. Launches must read nothing on the host."""
    monkeypatch.setattr(step_graphs, "BUCKETS", (ROWS,))
    found: list[int] = []
    launch = BeamGraphs.launch_searches

    def watched(self: BeamGraphs, *arguments: Any) -> Any:
        found.append(len(arguments[0].query_lens))
        with FakeGraphRunner.without_host_reads():
            return launch(self, *arguments)

    monkeypatch.setattr(BeamGraphs, "launch_searches", watched)
    if DEVICE.type == "cpu":
        monkeypatch.setattr(graph_runner, "CudaGraphRunner", lambda device: FakeGraphRunner())
    return found


def on_device(pair: Pair) -> Pair:
    model = load_model(Path(pair.loaded.spec.directory), torch.float32, DEVICE)
    return replace(pair, loaded=replace(pair.loaded, model=model))


def answers(
    pair: Pair, requests: list[Generate], with_searches: bool, sizes: GraphSizes = SIZES, every: int = 0
) -> dict[int, Any]:
    """Hypotheses of each request.

    with_searches: whether the device chooses the beams. Otherwise the host chooses them after captured steps of as many
        rows: the bits of a product may depend on its number of rows.
    """
    engine = pair.engine()
    runner = engine.models[pair.name].generation.runner
    runner.capture_steps(sizes)
    if not with_searches:
        runner.captured_searches = None
    results = run(engine, requests, every)
    assert not results.failed
    return {key: finished.hypotheses for key, finished in results.finished.items()}


SETTINGS: dict[str, dict[str, Any]] = {
    "marian": {
        "bad_words_ids": [[5]],
        "min_new_tokens": 3,
        "renormalize_logits": True,
        "forced_eos_token_id": 2,
        "num_return_sequences": 2,
    },
    "t5": {"length_penalty": 0.4, "early_stopping": "never"},
    "bart": {"early_stopping": True, "suppress_token_ids": [9], "num_return_sequences": 2},
    "m2m-100": {"forced_bos_token_id": 8, "length_penalty": 1.6},
    "gpt2": {"num_return_sequences": 2},
    "llama": {},
}


def check(pair: Pair, launches: list[int], settings: dict[str, Any], limit: int) -> None:
    """A search and a sampled row give the answers of the host, bit for bit, in steps that are launched ahead.

    The answers of the search are those of transformers.
    """
    requests = [
        generate(pair, 0, [5, 6, 7], max_new_tokens=limit, num_beams=2, **settings),
        generate(pair, 1, [11, 3], max_new_tokens=limit - 1, do_sample=True, seed=5),
    ]
    found = answers(pair, requests, True)
    assert launches.count(3) >= 2
    assert found == answers(pair, requests, False)
    names = {"suppress_token_ids": "suppress_tokens"}
    theirs = {names.get(name, name): value for name, value in settings.items()}
    texts, scores = reference(pair, [5, 6, 7], max_new_tokens=limit, num_beams=2, **theirs)
    assert [hypothesis.token_ids for hypothesis in found[0]] == texts
    assert [hypothesis.score for hypothesis in found[0]] == pytest.approx(scores, abs=1e-4)


@torch.inference_mode()
def test_beams_of_marian(pairs, in_kernels, launches) -> None:
    check(on_device(pairs("marian")), launches, SETTINGS["marian"], 5)


@LONG
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "marian"])
@torch.inference_mode()
def test_beams_of_other_families(pairs, in_kernels, launches, name: str) -> None:
    check(on_device(pairs(name)), launches, SETTINGS[name], 7)


@LONG
@torch.inference_mode()
def test_beams_of_a_recording(tmp_path, in_kernels, launches) -> None:
    """Whisper without timestamps: suppressed tokens are banned on the device."""
    pair = on_device(make_speech_pair("whisper", tmp_path, DEVICE))
    frames = random_frames(pair, 1)[0]
    requests = [transcribe(pair, 0, frames, num_beams=2, suppress_token_ids=[7, 8], max_new_tokens=6)]
    sizes = GraphSizes(3, 40, 64)
    found = answers(pair, requests, True, sizes)
    assert len(launches) == 5 and found == answers(pair, requests, False, sizes)


@LONG
@torch.inference_mode()
def test_requests_that_join_and_leave(pairs, in_kernels, launches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beams leave their lanes for the prompts of later requests, and enter them again."""
    monkeypatch.setattr(step_graphs, "BUCKETS", (6,))
    pair = on_device(pairs("bart"))
    requests = [
        generate(pair, number, [5, 6, 7 + number], max_new_tokens=9 - number, num_beams=2) for number in range(3)
    ]
    left: list[int] = []
    leave = BlockTables.leave_lanes
    with monkeypatch.context() as patch:
        patch.setattr(BlockTables, "leave_lanes", lambda self, group: left.append(1) or leave(self, group))
        found = answers(pair, requests, True, every=3)
    assert found == answers(pair, requests, False, every=3)
    assert len(left) >= 2 and len(launches) > 6


@torch.inference_mode()
def test_texts_longer_than_the_table_of_slots_run_on_the_host(
    pairs, in_kernels, launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam_graphs, "MAX_CONTEXT", 3)
    pair = on_device(pairs("marian"))
    requests = [generate(pair, 0, [5, 6, 7], max_new_tokens=5, num_beams=2, min_new_tokens=5)]
    assert answers(pair, requests, True) == answers(pair, requests, False)
    assert launches == [2, 2], "launches for the second and the third token"


@torch.inference_mode()
def test_nothing_is_launched_for_a_device_without_graphs(pairs) -> None:
    engine = pairs("marian").engine()
    runner = engine.models["marian"].generation.runner
    with choice.using("torch"):
        runner.capture_steps(SIZES)
    assert runner.captured is None and runner.captured_searches is None


@pytest.mark.parametrize(
    ("settings", "batch_invariant", "reason"),
    [({"kv_cache_dtype": "int8"}, False, "a KV cache of 8 bits"), ({}, True, "--batch-invariant")],
)
def test_searches_that_are_not_captured_say_why(
    pairs, launches, settings: dict[str, Any], batch_invariant: bool, reason: str
) -> None:
    """The host chooses the beams; the other steps are captured."""
    request = [generate(pairs("gpt2"), 0, [5, 6, 7], max_new_tokens=3, num_beams=2)]
    with choice.using("cuda", batch_invariant=batch_invariant):
        pair = on_device(pairs("gpt2"))
        engine = pair.engine(**settings)
        runner = engine.models["gpt2"].generation.runner
        assert runner.capture_steps(SIZES) == {"beam searches": reason}
        assert runner.captured is not None and runner.captured_searches is None
        found = [run(each, request).finished[0].hypotheses[0] for each in (engine, pair.engine(**settings))]
    assert found[0].token_ids == found[1].token_ids
    assert not launches


def test_graphs_with_beams_take_the_pool_of_the_others(pairs, in_kernels, launches) -> None:
    """One runner captures both kinds, so that their memory is shared. Partial results of attention are shared too."""
    pair = on_device(pairs("marian"))
    runner = pair.engine().models["marian"].generation.runner
    fake = CudaGraphRunner(DEVICE) if DEVICE.type == "cuda" else FakeGraphRunner()
    with torch.inference_mode():
        graphs = pair.loaded.model.transformer.capture_steps(runner.self_cache, runner.cross_cache, SIZES, fake)
        beams = BeamGraphs(graphs, CaptureTime())
    assert beams._partials is graphs._partials and beams._decoder.logits is graphs._decoder.logits
    assert beams._runner is graphs._runner is fake
