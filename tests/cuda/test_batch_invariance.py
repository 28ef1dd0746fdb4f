"""With `--batch-invariant`, a request gives the same bits alone, in a batch, in chunks, and in captured steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.backends import choice, fixed_order
from models.backends.choice import backend
from models.backends.cuda.attention_view import CudaAttentionView
from models.backends.cuda.graphs import step_graphs
from models.backends.cuda.graphs.graph_runner import CudaGraphRunner
from models.backends.logits import LogitsRequest
from models.backends.rounded_slots import FP8
from models.backends.torch.sampling import Filters
from models.checkpoint.loader import load_model
from models.layers.pooling import normalize
from server.engine.loading.load import LoadError, load
from server.engine.process import service
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.worker_messages import Configure
from tests.cuda.graph_runner import FakeGraphRunner
from tests.cuda.test_step_graphs import GraphRows
from tests.engine.tiny_checkpoints import DECODERS, ENCODERS, HYBRIDS, SEQ2SEQ
from tests.parity.paged import Rows, encoder_batch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LONG = pytest.mark.many_shapes
TEXTS = [[5, 6, 7, 8, 9], [11, 3], [30], [4, 12, 8, 25]]
NEXT = [9, 14, 2, 21]
REQUEST = LogitsRequest(2, True)
CASES = {
    "llama": ("bfloat16", None),
    "qwen3": ("float32", None),
    "mixtral": ("float32", None),
    "gpt2": ("float16", "int8"),
    "gemma2": ("bfloat16", "int4"),
    "t5": ("float32", None),
    "deepseek-v3": ("float32", None),
}
"""Decoders and encoder-decoders, with their dtype and quantization."""


def model_of(saved, name: str, dtype: str = "float32", quantization: str | None = None):
    architecture, config = (DECODERS | ENCODERS | SEQ2SEQ)[name]
    directory = saved(config, architecture)
    return load_model(directory, getattr(torch, dtype), DEVICE, quantization=quantization).transformer


def sources_of(name: str, rows) -> list[list[int]] | None:
    return [TEXTS[row][::-1] for row in rows] if name in SEQ2SEQ else None


def outputs(rows: Rows, step: dict[int, list[int]]) -> dict[int, list[torch.Tensor]]:
    """Hidden state, logits and log-sum-exp of the last token of each row of a step."""
    output = rows.decode(step, dict.fromkeys(step, 1), REQUEST)
    columns = output.hidden, output.logits, output.top_k.values, output.top_k.logsumexp
    return {row: [column[place].clone() for column in columns] for place, row in enumerate(step)}


def assert_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert all(map(torch.equal, one, other)), [float((a - b).abs().max()) for a, b in zip(one, other, strict=True)]


@pytest.mark.parametrize("name", ["llama", *(pytest.param(name, marks=LONG) for name in CASES if name != "llama")])
@torch.inference_mode()
def test_a_text_gives_the_same_bits_in_every_step(saved, name: str) -> None:
    """Alone; among others in another order; in chunks beside decoding rows; by one token at a time."""
    with choice.using("cuda", batch_invariant=True):
        model = model_of(saved, name, *CASES[name])
        alone = []
        for row, text in enumerate(TEXTS):
            rows = Rows(model, sources_of(name, [row]))
            alone.append([outputs(rows, {0: text})[0], outputs(rows, {0: [NEXT[row]]})[0]])
        order = (2, 0, 3, 1)
        rows = Rows(model, sources_of(name, range(4)))
        together = outputs(rows, {row: TEXTS[row] for row in order})
        for row in order:
            assert_equal(together[row], alone[row][0])
        together = outputs(rows, {row: [NEXT[row]] for row in order})
        for row in order:
            assert_equal(together[row], alone[row][1])
        rows = Rows(model, sources_of(name, range(4)), seed=7)
        first = outputs(rows, {1: TEXTS[1], 2: TEXTS[2], 0: TEXTS[0][:4], 3: TEXTS[3][:1]})
        mixed = outputs(rows, {0: TEXTS[0][4:], 1: [NEXT[1]], 3: TEXTS[3][1:], 2: [NEXT[2]]})
        for row in (1, 2):
            assert_equal(first[row], alone[row][0])
            assert_equal(mixed[row], alone[row][1])
        for row in (0, 3):
            assert_equal(mixed[row], alone[row][0])


@torch.inference_mode()
def test_without_the_setting_some_bits_differ(saved) -> None:
    with choice.using("cuda"):
        model = model_of(saved, "llama")
        alone, rows = outputs(Rows(model), {0: [30]})[0], Rows(model)
        together = outputs(rows, dict(enumerate(TEXTS)))[2]
    assert not all(map(torch.equal, alone, together))


@pytest.mark.parametrize(
    ("name", "cache"),
    [("gpt2", None), ("gpt2", torch.int8), pytest.param("gpt2", FP8, marks=LONG), pytest.param("t5", None, marks=LONG)],
)
@torch.inference_mode()
def test_captured_steps_of_all_buckets_give_the_bits_of_eager_steps(
    saved, monkeypatch: pytest.MonkeyPatch, name: str, cache: torch.dtype | None
) -> None:
    monkeypatch.setattr(step_graphs, "BUCKETS", (1, 3))
    with choice.using("cuda", batch_invariant=True):
        model, found = model_of(saved, name), []
        for captured in (False, True):
            rows = GraphRows(model, sources_of(name, range(3)), dtype=cache)
            rows.feed(dict(enumerate(TEXTS[:3])))
            decode = model.decode
            if captured:
                runner = CudaGraphRunner(DEVICE) if DEVICE.type == "cuda" else FakeGraphRunner()
                rows.capture(runner)
            steps = []
            for step in ({2: [4], 0: [3]}, {1: [2]}):
                output = rows.decode(step, logits=REQUEST)
                steps += [output.hidden[: len(step)].clone(), output.logits[: len(step)].clone()]
                steps.append(output.top_k.logsumexp[: len(step)].clone())
            steps += [tensor.clone() for tensor in rows.pool.cache.tensors]
            found.append(steps)
            model.decode = decode
    assert all(map(torch.equal, *found))


@torch.inference_mode()
def test_texts_of_an_encoder(saved) -> None:
    with choice.using("cuda", batch_invariant=True):
        model = model_of(saved, "bert", "float16")
        together = model.encode(encoder_batch(TEXTS, DEVICE)).split([len(text) for text in TEXTS])
        for text, hidden in zip(TEXTS, together, strict=True):
            assert torch.equal(model.encode(encoder_batch([text], DEVICE)), hidden)
        vectors = torch.stack([hidden.float().mean(0) for hidden in together])
        units = normalize(vectors)
        assert all(torch.equal(normalize(vectors[row : row + 1])[0], units[row]) for row in range(4))
    torch.testing.assert_close(units.norm(dim=-1), torch.ones(4, device=DEVICE))


def test_draws_and_many_candidates_of_a_row() -> None:
    logits, uniforms = torch.randn(3, 300, device=DEVICE), np.array([0.1, 0.5, 0.9])
    filters = [Filters(0.7, typical_p=0.5), Filters(1.0), Filters(1.3, typical_p=0.9, top_k=9)]
    with choice.using("cuda", batch_invariant=True):
        chosen = backend(logits)
        together, many = chosen.draw(logits, filters, uniforms), chosen.logits_top_k(logits, 100, True)
        for row in range(3):
            part = slice(row, row + 1)
            alone = chosen.draw(logits[part], filters[part], uniforms[part])
            assert all(torch.equal(one, other[part]) for one, other in zip(alone, together, strict=True))
            top_k = chosen.logits_top_k(logits[part], 100, True)
            assert all(torch.equal(one, other[part]) for one, other in zip(top_k, many, strict=True))
            assert torch.equal(chosen.logits_top_k(logits[part], 5, True).logsumexp, many.logsumexp[part])
    expected = logits.logsumexp(-1) - logits.amax(-1)
    torch.testing.assert_close(many.logsumexp, expected)


def test_attention_is_computed_in_tiles_in_all_steps(saved) -> None:
    with choice.using("cuda", batch_invariant=True):
        rows = Rows(model_of(saved, "gpt2"))
        views: list[CudaAttentionView] = []
        original = CudaAttentionView.__init__

        def record(self, *arguments) -> None:
            original(self, *arguments)
            views.append(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CudaAttentionView, "__init__", record)
            rows.feed({0: [5]})
            rows.feed({0: [6]})
    assert views and all(view.decode is None and view.tiles is not None for view in views)


def test_models_with_other_layers_are_refused(saved) -> None:
    for name, layer in ((HYBRIDS[0], "GatedDelta"), ("longt5", "TransientGlobalAttention")):
        with (
            choice.using("cuda", batch_invariant=True),
            pytest.raises(
                choice.BatchInvarianceUnavailable, match=f"^--batch-invariant does not support.* class {layer} "
            ),
        ):
            model_of(saved, name)
    architecture, config = DECODERS[HYBRIDS[0]]
    spec = ModelSpec("llm", str(saved(config, architecture)), "float32")
    with (
        choice.using("cuda", batch_invariant=True),
        pytest.raises(LoadError, match=r"model 'llm': --batch-invariant does not support this model[^\n]*$"),
    ):
        load(spec, DEVICE, lambda *_: None)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a CPU refuses the setting")
def test_a_cpu_refuses_the_setting() -> None:
    configure = Configure(1, "cpu", [], EngineOptions(batch_invariant=True))
    message = "without it" if choice.kernels_are_built else "needs a CUDA device"
    with pytest.raises(LoadError, match=f"--batch-invariant.*{message}"):
        service.start(configure, lambda _: None)
    assert not fixed_order.enabled
    with choice.using("cuda"):
        choice.use_batch_invariance(torch.device("cuda"))
        assert fixed_order.enabled
    assert not fixed_order.enabled
