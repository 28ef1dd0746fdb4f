"""Draft heads with captured steps: passes in graphs, states that steps keep for them, and the tokens of the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers

from models.backends import choice
from models.backends.cuda.graphs import graph_runner, mixed_graphs, step_graphs
from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_runner import CudaGraphRunner
from models.backends.cuda.graphs.graph_sizes import GraphSizes
from models.backends.cuda.graphs.head_graphs import HeadGraphs
from models.backends.logits import LogitsRequest
from models.steps.batch import DecoderBatch
from models.steps.kv_cache import KVCache
from server.engine.drafting.drafts import NgramDrafter
from server.engine.loading.load import load
from server.engine.loading.model_building import build
from server.engine.loading.speculation import make_drafter
from server.engine.process.captures import capture_models
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions, ModelSpec, Speculation
from server.ipc.wire.generate_messages import Vocabulary
from tests.cuda.graph_runner import FakeGraphRunner
from tests.cuda.products import make_exact
from tests.engine.drafted_models import Drafted
from tests.engine.harness import PRINTABLE, generate, run
from tests.engine.speculative import counts
from tests.models.draft_heads import (
    LLAMA,
    eagle_config,
    eagle_reference,
    eagle_tensors,
    predicting_checkpoint,
    write_head,
)
from tests.parity.checkpoints import save

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LONG = pytest.mark.many_shapes
LIMITS = GraphSizes(rows=4, context=64, tokens=16)
LAYERS = (0, 2)
"""Layers of the model whose inputs the EAGLE-3 head reads."""
KINDS = [pytest.param("glm4_moe", marks=LONG), "eagle3"]


@pytest.fixture
def in_kernels(monkeypatch: pytest.MonkeyPatch):
    make_exact(monkeypatch)
    monkeypatch.setattr(mixed_graphs, "sizes_up_to", lambda tokens: (8, 16))
    monkeypatch.setattr(step_graphs, "BUCKETS", (2, 4))
    with choice.using("cuda"):
        yield


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Function that returns a checkpoint with a kind of head, and the reference of the head. Each is written once."""
    made = {}

    def get(kind: str):
        if kind not in made:
            directory = tmp_path_factory.mktemp(kind)
            if kind == "eagle3":
                layers = {"num_hidden_layers": 3}
                config = transformers.LlamaConfig(**{**LLAMA[1].to_dict(), **layers})
                oracle = save(directory / "model", config, LLAMA[0])
                settings = eagle_config(eagle_aux_hidden_state_layer_ids=list(LAYERS))
                tensors = eagle_tensors(settings, count=len(LAYERS))
                write_head(directory / "head", settings, tensors)
                way = Speculation(eagle_directory=str(directory / "head"))
                made[kind] = directory / "model", way, eagle_reference(oracle, settings, tensors, LAYERS)
            else:
                reference = predicting_checkpoint(kind, directory)
                made[kind] = directory, Speculation(prediction_head=True), reference
        return made[kind]

    return get


def drafted(directories, kind: str) -> Drafted:
    directory, way, reference = directories(kind)
    spec = ModelSpec(kind, str(directory), "float32", speculation=way)
    return Drafted(kind, load(spec, DEVICE, lambda done, total: None), reference)


def runner():
    return CudaGraphRunner(DEVICE) if DEVICE.type == "cuda" else FakeGraphRunner()


def batch_of(starts: list[int], counts: list[int], outputs: list[int] | None = None) -> DecoderBatch:
    """Rows of texts in blocks of four tokens; row i has the blocks from 8 * i on. On the CPU."""
    positions = [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
    tables = torch.arange(8 * len(starts)).view(-1, 8)
    slots = torch.cat([table[own // 4] * 4 + own % 4 for table, own in zip(tables, positions, strict=True)])
    ends = tuple(start + count for start, count in zip(starts, counts, strict=True))
    token_ids = (torch.arange(sum(counts)) * 7 + 3) % 97
    return DecoderBatch(
        token_ids, torch.cat(positions), tuple(counts), ends, slots, tables[:, : -(-max(ends) // 4)],
        output_lens=None if outputs is None else tuple(outputs),
    )  # fmt: skip


def on_device(batch: DecoderBatch) -> DecoderBatch:
    names = ("token_ids", "positions", "slot_mapping", "block_tables")
    return replace(batch, **{name: getattr(batch, name).to(DEVICE) for name in names})


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_captured_passes_are_those_of_an_eager_head(directories, in_kernels, kind: str) -> None:
    head = drafted(directories, kind).loaded.model.draft_head
    caches = [KVCache(head.config.attention_layers, 32, 4, head.attention_dtype, DEVICE) for _ in range(2)]
    fake = runner()
    graphs = head.capture_passes(caches[0], LIMITS, fake, CaptureTime())
    if isinstance(fake, FakeGraphRunner):
        assert fake.rows == [16, 8, 4, 2], "the largest of each kind comes first"
    generator, hidden = torch.Generator().manual_seed(3), head.config.hidden_size
    steps = [
        batch_of([0, 0, 0], [5, 1, 3], [1, 1, 1]),
        batch_of([5, 1, 3], [1, 1, 1]),
        batch_of([6, 2, 4], [2, 4, 3], [0, 0, 0]),
        batch_of([8, 6, 7], [3, 2, 2], [2, 1, 1]),
    ]
    kept = []
    for batch in steps:
        states = torch.randn(len(batch.token_ids), hidden, generator=generator).to(DEVICE)
        request = None if batch.output_lens is not None and not any(batch.output_lens) else LogitsRequest()
        found = graphs.run(batch, states, request)
        # An eager pass attends with another kernel if each output row has one query, so it computes all rows.
        every = head.decode(replace(on_device(batch), output_lens=None), states, caches[1]).hidden
        expected = every if batch.output_rows is None else every[batch.output_rows.to(DEVICE)]
        assert torch.equal(found.hidden, expected)
        for one, other in zip(caches[0].tensors, caches[1].tensors, strict=True):
            assert torch.equal(one, other)
        if request is None:
            assert found.logits is None
        else:
            logits, top_k = head.logits_top_k(expected.clone(), request)
            assert torch.equal(found.logits, logits[: len(found.logits)])
            assert torch.equal(found.top_k.ids, top_k.ids)
        kept.append((found.hidden, expected))
    assert all(torch.equal(hidden, expected) for hidden, expected in kept), "later passes overwrite no hidden states"


@torch.inference_mode()
def test_passes_without_a_graph_are_left_to_the_eager_head(directories, in_kernels) -> None:
    head = drafted(directories, "eagle3").loaded.model.draft_head
    cache = KVCache(head.config.attention_layers, 64, 4, head.attention_dtype, DEVICE)
    graphs = head.capture_passes(cache, LIMITS, runner(), CaptureTime())
    before = [tensor.clone() for tensor in cache.tensors]

    def takes(batch: DecoderBatch, request: LogitsRequest | None = LogitsRequest()) -> bool:  # noqa: B008 (immutable)
        return graphs.run(batch, torch.zeros(len(batch.token_ids), head.config.hidden_size), request) is not None

    assert not takes(batch_of([0], [17], [1])), "more tokens than the largest graph"
    assert not takes(batch_of([0] * 5, [1] * 5)), "more rows than the limit"
    assert not takes(batch_of([0, 0], [2, 1], [2, 1]), None), "outputs whose logits are computed later"
    assert all(torch.equal(one, other) for one, other in zip(cache.tensors, before, strict=True))
    assert takes(batch_of([0], [16], [1])) and takes(batch_of([16], [1]))


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_captured_steps_keep_the_states_that_the_head_reads(directories, in_kernels, kind: str) -> None:
    model = drafted(directories, kind).loaded.model.transformer
    caches = [KVCache(model.self_attention_layers(), 32, 4, torch.float32, DEVICE) for _ in range(2)]
    limits, fake = LIMITS._replace(keeps_states=True), runner()
    mixed = model.capture_mixed_steps(caches[0], None, limits, fake, CaptureTime())
    single = model.capture_steps(caches[0], None, limits, fake, CaptureTime())
    kept = []
    for graphs, batch in ((mixed, batch_of([0, 0], [5, 3], [1, 2])), (single, batch_of([5, 3], [1, 1]))):
        eager = model.decode(replace(on_device(batch), output_lens=None), caches[1])
        expected = eager.hidden if eager.draft_states is None else eager.draft_states
        assert expected.shape == (len(batch.token_ids), 32 * (len(LAYERS) if kind == "eagle3" else 1))
        found = graphs.run(batch, LogitsRequest())
        assert torch.equal(found.draft_states, expected)
        kept.append((found.draft_states, expected))
    assert all(torch.equal(found, expected) for found, expected in kept), "later steps overwrite no states"
    without = model.capture_steps(caches[0], None, LIMITS, fake, CaptureTime())
    assert without.run(batch_of([6, 4], [1, 1]), LogitsRequest()).draft_states is None


@LONG
@pytest.mark.parametrize("kind", ["glm4_moe", "eagle3"])
def test_the_engine_drafts_the_same_tokens(directories, in_kernels, kind: str, monkeypatch) -> None:
    """Passes of the head are replays, steps with drafts too, and steps between drafts are launched ahead."""
    from server.engine.drafting import head_drafter
    from server.engine.drafting.head_texts import HeadText

    turns = iter([1, 0] * 50)
    monkeypatch.setattr(HeadText, "probabilities", lambda self, count: [1.0] * count)
    monkeypatch.setattr(head_drafter, "REST_STEPS", 3)
    monkeypatch.setattr(
        head_drafter,
        "head_draft_lengths",
        lambda probabilities, rows, costs: [len(row) * next(turns, 1) for row in probabilities],
    )
    fakes: list[FakeGraphRunner] = []
    monkeypatch.setattr(graph_runner, "CudaGraphRunner", lambda device: fakes.append(FakeGraphRunner()) or fakes[-1])
    model = drafted(directories, kind)
    options = EngineOptions(
        block_size=4, kv_cache_bytes=1 << 18, speculative_tokens=2, max_batch_rows=4, max_batch_tokens=16
    )
    share, drafter = make_drafter(model.loaded, None, options, options.kv_cache_bytes)
    engine = Engine({kind: build(model.loaded, options, share, drafter)[0]}, DEVICE)
    engine.set_vocabulary(Vocabulary(kind, PRINTABLE))
    assert capture_models(engine, [model.loaded], options) == {kind: "CUDA graphs"}
    passes: list[object] = []
    run_pass = HeadGraphs.run
    monkeypatch.setattr(HeadGraphs, "run", lambda self, *given: passes.append(run_pass(self, *given)) or passes[-1])
    requests = [
        generate(model, 1, [5, 6, 7], max_new_tokens=10, end_token_ids=[]),
        generate(model, 2, [8, 9, 11, 4], max_new_tokens=9, end_token_ids=[]),
    ]
    with choice.using("torch"):
        plain = run(drafted(directories, kind).plain(), requests)
    results = run(engine, requests)
    assert [results.texts(i) for i in (1, 2)] == [plain.texts(i) for i in (1, 2)]
    assert counts(engine)[0] > 3
    assert len([one for one in passes if one is not None]) > 3
    # Prefill, decode steps and beams of the model; then the two kinds of passes of the head.
    assert [fake.rows for fake in fakes][1] == [16, 8, 4, 2]
    assert drafter.passes._graphs is not None


def test_a_draft_model_is_captured_too(pairs, monkeypatch) -> None:
    """The drafter of another model runs captured steps, or says why not; n-grams have no steps."""
    from server.engine.drafting.draft_model import ModelDrafter

    asked = []

    class Runner:
        def capture_steps(self, decoder, encoder=None, time=None):
            asked.append(decoder)
            return {"prefill": "x", "decode steps": "too old"}

    pool = pairs("gpt2").engine(kv_cache_bytes=1 << 16).models["gpt2"].generation.scheduler.blocks.self_pool
    drafter = ModelDrafter(Runner(), pool, 4, 24, 100)
    assert drafter.capture(GraphSizes(8, 50, tokens=64), CaptureTime()) == {"drafts": "too old"}
    assert asked == [GraphSizes(8, min(100, pool.num_blocks * pool.block_size), tokens=24)]
    assert NgramDrafter(4).capture(GraphSizes(8, 50), CaptureTime()) == {}
