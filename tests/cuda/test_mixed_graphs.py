"""Captured steps with prefill or drafts: their bits are those of eager steps, whatever else is in the graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from models.backends import choice
from models.backends.cuda.graphs import graph_runner, mixed_graphs, step_graphs
from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_runner import CudaGraphRunner
from models.backends.cuda.graphs.graph_sizes import GraphSizes
from models.backends.cuda.graphs.mixed_graphs import MixedGraphs
from models.backends.logits import DecoderOutput, LogitsRequest
from models.backends.rounded_slots import FP8
from models.checkpoint.loader import load_model
from models.steps.batch import DecoderBatch
from tests.cuda.graph_runner import FakeGraphRunner, Forbidden
from tests.cuda.products import make_exact
from tests.engine.harness import generate, run
from tests.engine.still_device import StillDevice
from tests.engine.tiny_checkpoints import DECODERS, SEQ2SEQ
from tests.parity.paged import Rows

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LONG = pytest.mark.many_shapes
LIMITS = GraphSizes(rows=3, context=40, source=16, tokens=12)
TEXTS = [[5, 6, 7, 8, 9], [11, 3], [30]]


class MixedRows(Rows):
    """Rows of which some steps are compared with a graph: `compare` runs the next step both ways.

    graphs: the captured steps. compared: number of compared steps.
    """

    graphs: MixedGraphs | None = None
    compared = 0

    def capture(self, runner, limits: GraphSizes = LIMITS) -> None:
        cross = None if self.cross is None else self.cross.cache
        with torch.inference_mode():
            self.graphs = self.model.capture_mixed_steps(self.pool.cache, cross, limits, runner, CaptureTime())
        self.eager = self.model.decode
        self.model.decode = self._decode_both

    def _decode_both(self, batch: DecoderBatch, cache, cross_cache, logits, states):
        """Run a step in a graph and eagerly, and compare results and caches. Returns the eager result."""
        caches = [tensor.clone() for tensor in self.pool.cache.tensors]
        output_lens = batch.query_lens if batch.output_lens is None else batch.output_lens
        assert self.graphs.takes(batch, sum(output_lens))
        names = ("token_ids", "positions", "slot_mapping", "block_tables", "source_block_tables")
        given = {name: getattr(batch, name) for name in names}
        on_cpu = {name: None if tensor is None else tensor.cpu() for name, tensor in given.items()}
        found = tree_map_only(torch.Tensor, torch.clone, self.graphs.run(replace(batch, **on_cpu), logits))
        captured = [tensor.clone() for tensor in self.pool.cache.tensors]
        for tensor, before in zip(self.pool.cache.tensors, caches, strict=True):
            tensor.copy_(before)
        # An eager step attends with another kernel if each output row has one query, so it computes all rows.
        hidden = self.eager(replace(batch, output_lens=None), cache, cross_cache, None, states).hidden
        hidden = hidden if batch.output_rows is None else hidden[batch.output_rows]
        assert torch.equal(found.hidden, hidden)
        for one, other in zip(captured, self.pool.cache.tensors, strict=True):
            assert torch.equal(one, other)
        if logits is not None:
            # Another kernel multiplies a single row, so the expected logits are those of two equal ones.
            values, top_k = self.model.logits_top_k(torch.cat([hidden, hidden]), logits)
            expected = DecoderOutput(hidden, values, top_k)
            for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
                assert one is other is None or torch.equal(one, other[: len(one)])
        self.compared += 1
        return found


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch):
    """The Triton kernels, with exact products and uninitialised memory full of NaN."""
    make_exact(monkeypatch)
    new_empty = torch.Tensor.new_empty

    def poisoned(self, *size, **kwargs):
        made = new_empty(self, *size, **kwargs)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    monkeypatch.setattr(mixed_graphs, "sizes_up_to", lambda tokens: (8, 12))
    with choice.using("cuda"):
        yield


def load(saved, name: str):
    architecture, config = (DECODERS | SEQ2SEQ)[name]
    return load_model(saved(config, architecture), torch.float32, DEVICE).transformer


def runner():
    return CudaGraphRunner(DEVICE) if DEVICE.type == "cuda" else FakeGraphRunner()


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("gpt2", None),
        ("gpt2", torch.int8),
        pytest.param("t5", FP8, marks=LONG),
        *(pytest.param(name, None, marks=LONG) for name in ("gemma2", "t5", "mixtral")),
    ],
)
@torch.inference_mode()
def test_a_replayed_step_has_the_bits_of_an_eager_one(saved, exact, name: str, cache: torch.dtype | None) -> None:
    sources = [text[::-1] for text in TEXTS] if name in SEQ2SEQ else None
    rows = MixedRows(load(saved, name), sources, dtype=cache)
    rows.capture(runner())
    rows.decode({0: TEXTS[0], 1: TEXTS[1], 2: [4, 5, 6]}, {0: 1, 1: 0, 2: 1}, LogitsRequest(2))
    # All tokens of row 0 need logits, as in a step with a draft. The step is smaller than the one before it.
    rows.decode({1: [9], 0: [4, 8, 2]}, {1: 1, 0: 3}, LogitsRequest(3, True))
    assert rows.compared == 2


@torch.inference_mode()
def test_steps_that_fit_no_graph_are_not_taken(saved, exact) -> None:
    rows = MixedRows(load(saved, "gpt2"))
    rows.capture(StillDevice(None))

    def batch(query_lens: list[int], key_lens: list[int], adapters: tuple[str, ...] = ()) -> DecoderBatch:
        zeros = torch.zeros(sum(query_lens), dtype=torch.int64)
        tables = torch.zeros(len(query_lens), 1, dtype=torch.int64)
        return DecoderBatch(zeros, zeros, tuple(query_lens), tuple(key_lens), zeros, tables, adapters=adapters)

    takes = rows.graphs.takes
    assert takes(batch([5, 1], [9, 4]), 2) and takes(batch([12], [40]), 12)
    assert not takes(batch([1, 1], [9, 4]), 2), "a decode step"
    assert not takes(batch([13], [13]), 1), "more tokens than the largest graph"
    assert not takes(batch([2, 1, 1, 1], [2, 1, 1, 1]), 4), "more rows than the limit"
    assert not takes(batch([2], [41]), 1), "more keys than the tables of positions have"
    assert not takes(batch([2], [2], ("a",)), 1), "an adapter"
    decoder = rows.graphs._decoder
    rows.graphs._decoder = decoder._replace(logits=decoder.logits[:1])
    assert not takes(batch([2], [2]), 2), "more output rows than the memory for logits"


@torch.inference_mode()
def test_a_step_copies_its_numbers_once_and_reads_nothing(saved, exact) -> None:
    rows = MixedRows(load(saved, "gpt2"))
    fake = FakeGraphRunner()
    rows.capture(fake)
    rows.pool.slots(0, 0, 8)
    table = torch.tensor([rows.pool.blocks[0][:1]])
    ids = torch.tensor([9, 8])
    batch = DecoderBatch(ids, torch.arange(2), (2,), (2,), table[0] * 4 + torch.arange(2), table, output_lens=(1,))
    fake.log.clear()
    with fake.without_host_reads():
        rows.graphs.run(batch, LogitsRequest())
    assert fake.log == ["wait 0", "record 0", "replay"]


@torch.inference_mode()
def test_a_planted_host_read_is_found(saved, exact, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = MixedRows(load(saved, "gpt2"))
    layer = rows.model.decoder.layers[1]
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x, step: forward(x * x[0, 0].isnan().logical_not().item(), step))
    with pytest.raises(Forbidden):
        rows.capture(FakeGraphRunner())


@LONG
def test_the_engine_generates_the_same_tokens(pairs, exact, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt in chunks, prompts beside running rows, and beams."""
    pair = pairs("gpt2")
    pair = replace(
        pair, loaded=replace(pair.loaded, model=load_model(Path(pair.loaded.spec.directory), torch.float32, DEVICE))
    )
    requests = [
        generate(pair, 3, list(range(5, 30)), max_new_tokens=2, do_sample=True, seed=4),
        generate(pair, 1, [5, 6, 7, 8, 9, 10], max_new_tokens=4),
        generate(pair, 2, [8, 9, 11, 4, 5], max_new_tokens=3, num_beams=2),
    ]
    monkeypatch.setattr(step_graphs, "BUCKETS", (4,))
    fake = FakeGraphRunner()
    monkeypatch.setattr(graph_runner, "CudaGraphRunner", lambda device: fake)
    taken = []
    run_mixed = MixedGraphs.run
    monkeypatch.setattr(MixedGraphs, "run", lambda self, *given: taken.append(given) or run_mixed(self, *given))
    texts = []
    for captured in (False, True):
        engine = pair.engine(max_batch_tokens=12)
        generation = engine.models["gpt2"].generation
        if captured:
            assert generation.runner.capture_steps(GraphSizes(4, 40, 0, 12)) == {}
            generation.learn_step_times_again(has_fixed_part=True)
        results = run(engine, requests, every=1)
        texts.append({key: finished.hypotheses[0].token_ids for key, finished in results.finished.items()})
    assert texts[0] == texts[1]
    assert len(taken) >= 3 and any(logits is None for _, logits in taken), "a chunk without an output row is a replay"
