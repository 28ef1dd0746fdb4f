"""Captured decode steps: their results, their inputs, and what they must not do.

Without a device, the kernels run in Triton's interpreter, and a runner of the tests stands in for CUDA graphs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.backends import choice
from models.backends.cuda.graphs import graph_runner, step_graphs
from models.backends.cuda.graphs.graph_runner import CudaGraphRunner, GraphRunner
from models.backends.cuda.graphs.graph_sizes import GraphSizes, why_not_captured
from models.backends.cuda.graphs.step_graphs import StepGraphs
from models.backends.logits import DecoderOutput, LogitsRequest
from models.backends.torch.sampling import Filters
from models.checkpoint.loader import load_model
from models.steps.batch import DecoderBatch
from tests.cuda.graph_runner import FakeGraphRunner, Forbidden
from tests.engine.harness import generate, run
from tests.engine.tiny_checkpoints import DECODERS, HYBRIDS, SEQ2SEQ
from tests.parity.paged import Rows

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LONG = pytest.mark.many_shapes
NOT_CAPTURED = {
    HYBRIDS[0]: "mixers, whose states the host chooses",
    "gemma4": "layers with vectors of their own",
    "apertus": "an activation whose shape the host reads",
    "llama-dynamic": "rotations that depend on the length of the text",
}
"""Decoders of the tests whose steps are not captured, and the reasons."""
TEXTS = [[5, 6, 7, 8, 9], [11, 3], [30]]


class GraphRows(Rows):
    """Rows whose steps of one token per row run as graphs."""

    graphs: StepGraphs | None = None

    def capture(self, runner: GraphRunner, rows: int = 4) -> None:
        cross = None if self.cross is None else self.cross.cache
        with torch.inference_mode():
            self.graphs = self.model.capture_steps(self.pool.cache, cross, GraphSizes(rows, 40, 16), runner)
        assert self.graphs is not None
        self.decode_eagerly = self.model.decode
        self.model.decode = self._decode_in_graph

    def _decode_in_graph(self, batch, cache, cross_cache, logits, states):
        assert self.graphs is not None
        if logits is None or not self.graphs.takes(batch.query_lens, batch.key_lens, batch.source_lens):
            return self.decode_eagerly(batch, cache, cross_cache, logits, states)
        tensors = ("token_ids", "positions", "slot_mapping", "block_tables", "source_block_tables")
        given = {name: getattr(batch, name) for name in tensors}
        on_cpu = {name: None if tensor is None else tensor.cpu() for name, tensor in given.items()}
        return self.graphs.run(replace(batch, **on_cpu), logits)

    def launch(self, rows: list[int], token_ids: list[int], filters: list[Filters], uniforms: np.ndarray):
        """Launch a step of one token per row. token_ids: see `StepGraphs.launch`."""
        batches: list[DecoderBatch] = []

        def take(batch: DecoderBatch, *others: object) -> DecoderOutput:
            batches.append(batch)
            return DecoderOutput(torch.zeros(0))

        self.model.decode, decode = take, self.model.decode
        self.decode({row: [0] for row in rows})
        self.model.decode = decode
        tensors = {name: getattr(batches[0], name).cpu() for name in ("positions", "slot_mapping", "block_tables")}
        batch = replace(batches[0], token_ids=torch.tensor(token_ids), **tensors)
        with FakeGraphRunner.without_host_reads():
            return self.graphs.launch(batch, filters, uniforms)


def load(saved, name: str):
    architecture, config = (DECODERS | SEQ2SEQ)[name]
    return load_model(saved(config, architecture), torch.float32, DEVICE).transformer


@pytest.fixture
def in_kernels():
    with choice.using("cuda"):
        yield


@pytest.mark.parametrize(
    "name", ["gpt2", *(pytest.param(name, marks=LONG) for name in ("llama", "t5", "bart", "marian", "m2m-100"))]
)
@torch.inference_mode()
def test_a_replayed_step_equals_an_eager_one(saved, in_kernels, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(step_graphs, "BUCKETS", (3,))
    sources = [text[::-1] for text in TEXTS] if name in SEQ2SEQ else None
    request = LogitsRequest(2, True)
    runner = CudaGraphRunner(DEVICE) if DEVICE.type == "cuda" else FakeGraphRunner()
    results = []
    for captured in (False, True):
        rows = GraphRows(load(saved, name), sources)
        rows.feed(dict(enumerate(TEXTS)))
        if captured:
            rows.capture(runner)
        outputs = []
        for step in ({2: [4], 0: [3]}, {1: [2]}):
            output = rows.decode(step, logits=request)
            outputs += [output.logits[: len(step)].clone(), output.top_k.ids, output.top_k.logsumexp]
            hidden = output.hidden[: len(step)].clone()
            outputs.append(hidden)
        results.append((outputs, [tensor.clone() for tensor in rows.pool.cache.tensors]))
    assert isinstance(runner, CudaGraphRunner) or runner.log.count("replay") == 2
    (eager, eager_cache), (replayed, replayed_cache) = results
    for one, other in zip(replayed, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for one, other in zip(replayed_cache, eager_cache, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_steps_allocate_nothing_and_copy_once(saved, in_kernels) -> None:
    rows = GraphRows(load(saved, "gpt2"))
    rows.feed({0: [11]})
    runner = FakeGraphRunner()
    rows.capture(runner, 3)
    assert runner.rows == [4, 1, 2], "the largest step, which holds three rows, is captured first"
    table = torch.tensor([rows.pool.blocks[0][:1]])
    batch = DecoderBatch(torch.tensor([9]), torch.tensor([1]), (1,), (2,), table[0] * 4 + 1, table)
    first = rows.graphs.run(batch, LogitsRequest())
    with runner.without_allocations():
        output = rows.graphs.run(batch, LogitsRequest())
    assert output.logits.shape[0] == output.top_k.ids.shape[0] == output.hidden.shape[0] == 1
    assert runner.log == ["wait 0", "record 0", "replay"] * 2
    assert first.logits.data_ptr() == output.logits.data_ptr(), "results are in memory that the next step overwrites"


@LONG
@torch.inference_mode()
def test_a_launched_step_takes_its_tokens_from_the_last_one(saved, in_kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows change their places between two steps, and one is left out; tokens are read a step later."""
    monkeypatch.setattr(step_graphs, "BUCKETS", (3,))
    filters, uniforms = [[Filters()] * 3, [Filters(0.8, top_k=7), Filters()]], np.array([0.0, 0.3, 0.7])
    orders = ([0, 1, 2], [2, 0])
    found = []
    for reads_at_once in (True, False):
        runner = CudaGraphRunner(DEVICE) if DEVICE.type == "cuda" else FakeGraphRunner()
        rows = GraphRows(load(saved, "gpt2"))
        rows.feed(dict(enumerate(TEXTS)))
        rows.capture(runner)
        token_ids, steps, tokens = [9, 9, 9], [], []
        for number, order in enumerate(orders):
            if number and reads_at_once:
                token_ids = [tokens[-1][orders[number - 1].index(row)] for row in order]
            elif number:
                token_ids = [-1 - orders[number - 1].index(row) for row in order]
            steps.append(rows.launch(order, token_ids, filters[number], uniforms[order]))
            if reads_at_once or number:
                tokens.append(steps[len(tokens)].read())
        found.append(tokens if reads_at_once else [*tokens, steps[-1].read()])
    assert found[0] == found[1] and all(min(step) >= 0 for step in found[0])
    if isinstance(runner, FakeGraphRunner):
        assert [entry for entry in runner.log if entry[-1] in "12"] == ["record 1", "record 2", "wait 1", "wait 2"]


@torch.inference_mode()
def test_a_launched_greedy_step_allocates_nothing(saved, in_kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_graphs, "BUCKETS", (1,))
    rows = GraphRows(load(saved, "gpt2"))
    rows.feed({0: [11]})
    runner = FakeGraphRunner()
    rows.capture(runner, 1)
    table = torch.tensor([rows.pool.blocks[0][:1]])
    batch = DecoderBatch(torch.tensor([-1]), torch.tensor([1]), (1,), (2,), table[0] * 4 + 1, table)
    with runner.without_allocations():
        step = rows.graphs.launch(batch, [Filters()], np.zeros(1))
    assert runner.log == ["wait 0", "record 0", "replay", "record 1"], "nothing is read"
    assert len(step.read()) == 1


def test_the_runner_of_the_tests_finds_host_reads_and_allocations() -> None:
    runner = FakeGraphRunner()
    one = torch.ones(1)
    for wrong in (one.item, one.tolist, one.cpu, one.nonzero, lambda: torch.tensor([1, 2]), lambda: 0 if one else 1):
        with pytest.raises(Forbidden):
            runner.capture(wrong)
        with pytest.raises(Forbidden), runner.without_host_reads():
            one.tolist()
    with runner.without_allocations(), pytest.raises(Forbidden):
        torch.ones(2)


@pytest.mark.parametrize("plant", ["a read of a number", "a read of a list", "a copy of a new tensor"])
@torch.inference_mode()
def test_a_planted_host_read_in_a_layer_is_found(
    saved, in_kernels, monkeypatch: pytest.MonkeyPatch, plant: str
) -> None:
    rows = GraphRows(load(saved, "gpt2"))
    layer = rows.model.decoder.layers[1]
    forward, reads = layer.forward, {"a read of a number": "item", "a read of a list": "tolist"}

    def reading(x: torch.Tensor, step) -> torch.Tensor:
        if plant in reads:
            getattr(x[0, 0], reads[plant])()
            return forward(x, step)
        return forward(x + torch.tensor([0.0]), step)

    monkeypatch.setattr(layer, "forward", reading)
    monkeypatch.setattr(step_graphs, "BUCKETS", (1,))
    with pytest.raises(Forbidden):
        rows.capture(FakeGraphRunner(), 1)


@torch.inference_mode()
def test_steps_that_fit_no_graph_are_not_taken(saved, in_kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = GraphRows(load(saved, "gpt2"))
    monkeypatch.setattr(step_graphs, "MAX_PARTIALS", 3)
    monkeypatch.setattr(step_graphs, "BUCKETS", (4,))
    rows.capture(FakeGraphRunner())
    takes = rows.graphs.takes
    assert takes((1, 1), (5, 6), ()) and takes((1,), (40,), ())
    assert not takes((1, 2), (5, 6), ()), "prefill"
    assert not takes((1, 0), (5, 6), ()), "a row without a token"
    assert not takes((1,) * 5, (5,) * 5, ()), "more rows than the largest bucket"
    assert not takes((1,), (41,), ()), "more keys than the tables of positions have"
    assert not takes((1,) * 4, (5,) * 4, ()), "more partial results than the memory has"


def test_decoders_that_cannot_be_captured_run_eagerly(saved, in_kernels) -> None:
    for name in ("gpt2", "mixtral", "deepseek-v3", "gemma2"):
        assert why_not_captured(load(saved, name).decoder) is None
    for name in ("t5", "bart", "marian", "m2m-100", "pegasus", "led", "fsmt", "blenderbot", "switch_transformers"):
        assert why_not_captured(load(saved, name).decoder) is None
    for name, reason in NOT_CAPTURED.items():
        model = load(saved, name)
        cache = Rows(model).pool.cache
        assert model.why_not_captured() == reason
        assert model.capture_steps(cache, None, GraphSizes(4, 40), FakeGraphRunner()) is None


def test_nothing_is_captured_without_the_kernels(saved) -> None:
    with choice.using("torch"):
        model = load(saved, "gpt2")
        assert model.capture_steps(Rows(model).pool.cache, None, GraphSizes(4, 40), FakeGraphRunner()) is None


@LONG
def test_the_engine_generates_the_same_tokens(pairs, in_kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of different lengths join and leave; beams ask for more than the largest logit."""
    pair = pairs("gpt2")
    model = load_model(Path(pair.loaded.spec.directory), torch.float32, DEVICE)
    pair = replace(pair, loaded=replace(pair.loaded, model=model))
    requests = [
        generate(pair, 1, [5, 6, 7], max_new_tokens=2, do_sample=True, seed=5),
        generate(pair, 2, [8, 9], max_new_tokens=3, num_beams=2),
    ]
    monkeypatch.setattr(step_graphs, "BUCKETS", (3,))
    runner = FakeGraphRunner()
    monkeypatch.setattr(graph_runner, "CudaGraphRunner", lambda device: runner)
    texts = []
    for captured in (False, True):
        engine = pair.engine()
        if captured:
            engine.models["gpt2"].generation.runner.capture_steps(GraphSizes(4, 40))
        results = run(engine, requests)
        texts.append({key: finished.hypotheses[0].token_ids for key, finished in results.finished.items()})
        assert ("replay" in runner.log) == captured
    assert texts[0] == texts[1]
