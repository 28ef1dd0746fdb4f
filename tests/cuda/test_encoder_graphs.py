"""Captured encoder steps: their bits are those of eager steps, whatever else is in the graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from models.backends.cuda.graphs import encoder_graphs, graph_runner
from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_runner import CudaGraphRunner
from models.backends.cuda.graphs.graph_sizes import EncoderSizes
from models.backends.rounded_slots import FP8
from models.checkpoint.loader import load_model
from models.steps.batch import EncoderBatch
from models.steps.kv_cache import KVCache
from server.ipc.wire.encode_messages import Encode, EncodeItem
from tests.cuda.graph_runner import FakeGraphRunner, Forbidden
from tests.cuda.test_mixed_graphs import exact
from tests.engine.harness import run
from tests.engine.still_device import StillDevice
from tests.engine.tiny_checkpoints import DECODERS, ENCODERS, SEQ2SEQ
from tests.parity.paged import audio_batch, encoder_batch

__all__ = ["exact"]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LONG = pytest.mark.many_shapes
TEXTS = [[5, 6, 7, 8, 9, 12, 13, 14], [11, 3, 4, 5, 6, 7], [30, 2, 9]]


def load(saved, name: str):
    architecture, config = (DECODERS | SEQ2SEQ | ENCODERS)[name]
    return load_model(saved(config, architecture), torch.float32, DEVICE).transformer


def runner():
    return CudaGraphRunner(DEVICE) if DEVICE.type == "cuda" else FakeGraphRunner()


@pytest.fixture
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_graphs, "sizes_up_to", lambda tokens: (8, 24))


def steps() -> list[EncoderBatch]:
    """Steps with token types, with one text, and with attended tokens and one output row for each text.

    The second step follows upon the tokens of a larger one.
    """
    texts = encoder_batch(TEXTS, DEVICE)
    types = torch.arange(len(texts.token_ids), device=DEVICE) % 2
    return [
        replace(texts, token_type_ids=types),
        encoder_batch(TEXTS[:1], DEVICE),
        replace(texts, attended=(8, 4, 1), output_positions=(0, 5, 2)),
    ]


CASES = [
    ("bert", torch.float32),
    ("marian", torch.int8),
    pytest.param("t5", FP8, marks=LONG),
    *(
        pytest.param(name, torch.float32, marks=LONG)
        for name in ("classifier", "marian", "t5", "umt5", "qwen3", "bloom")
    ),
]
"""Models, and the dtype of keys and values in the cache of cross-attention, if they have one."""


@pytest.mark.parametrize(("name", "cache"), CASES)
@torch.inference_mode()
def test_a_replayed_step_has_the_bits_of_an_eager_one(saved, exact, few_sizes, name: str, cache: torch.dtype) -> None:
    model = load(saved, name)
    layers = model.cross_attention_layers()
    caches = [KVCache(layers, 16, 4, cache, DEVICE) for _ in range(2)] if layers else [None, None]
    graphs = model.capture_encoder(caches[0], EncoderSizes(24, 20), runner(), CaptureTime())
    assert graphs is not None and graphs.sizes == (8, 24)
    for batch in steps():
        if batch.attended is not None and name in DECODERS:
            continue
        slots = None
        if caches[0] is not None:
            slots = torch.randperm(64)[: len(batch.token_ids)].tolist()
        assert graphs.takes(batch)
        found = graphs.run(batch, slots).clone()
        everything = model.encode(replace(batch, output_positions=None))
        rows = batch.output_rows
        assert torch.equal(found, everything if rows is None else everything[rows])
        if slots is not None:
            model.write_cross(everything, torch.tensor(slots, device=DEVICE), caches[1])
            for one, other in zip(caches[0].tensors, caches[1].tensors, strict=True):
                assert torch.equal(one, other)
    if caches[0] is not None:
        before = [tensor.clone() for tensor in caches[0].tensors]
        graphs.run(steps()[1])
        assert all(map(torch.equal, before, caches[0].tensors)), "a step without slots stores nothing"


@torch.inference_mode()
def test_a_recording_encoder_is_captured_by_number_of_recordings(saved, exact) -> None:
    config = transformers.WhisperConfig(
        vocab_size=97,
        num_mel_bins=6,
        d_model=24,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=40,
        decoder_ffn_dim=40,
        max_source_positions=9,
        max_target_positions=32,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=2,
        decoder_start_token_id=2,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = load_model(saved(config, "WhisperForConditionalGeneration"), torch.float32, DEVICE).transformer
    caches = [KVCache(model.cross_attention_layers(), 8, 4, torch.float32, DEVICE) for _ in range(2)]
    graphs = model.capture_encoder(caches[0], EncoderSizes(24, 9, 18), runner(), CaptureTime())
    assert graphs is not None and graphs.sizes == (9, 18)
    for count in (2, 1):
        batch = audio_batch([torch.randn(18, 6) for _ in range(count)], DEVICE)
        slots = torch.randperm(32)[: 9 * count].tolist()
        assert graphs.takes(batch)
        found = graphs.run(batch, slots).clone()
        hidden = model.encode(batch)
        model.write_cross(hidden, torch.tensor(slots, device=DEVICE), caches[1])
        assert torch.equal(found, hidden)
        for one, other in zip(caches[0].tensors, caches[1].tensors, strict=True):
            assert torch.equal(one, other)
    assert not graphs.takes(audio_batch([torch.randn(18, 6)] * 3, DEVICE)), "more recordings than the largest graph"
    assert not graphs.takes(audio_batch([torch.randn(16, 6)], DEVICE)), "a recording of another length"
    assert not graphs.takes(encoder_batch(TEXTS, DEVICE))


@torch.inference_mode()
def test_steps_that_fit_no_graph_are_not_taken(saved, exact, few_sizes) -> None:
    model = load(saved, "bert")
    graphs = model.capture_encoder(None, EncoderSizes(24, 20), StillDevice(None), CaptureTime())
    assert graphs.takes(encoder_batch([[5] * 20, [5] * 4], DEVICE)) and graphs.takes(encoder_batch([[5]], DEVICE))
    assert not graphs.takes(encoder_batch([[5] * 21], DEVICE)), "longer than the tables of positions"
    assert not graphs.takes(encoder_batch([[5] * 20, [5] * 5], DEVICE)), "more tokens than the largest graph"
    assert not graphs.takes(encoder_batch([[5]] * 4, DEVICE)), "more texts than the graph has rows for"
    assert not graphs.takes(replace(encoder_batch([[5]], DEVICE), adapters=("a",))), "an adapter"


@torch.inference_mode()
def test_a_planted_host_read_is_found(saved, exact, few_sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(saved, "bert")
    layer = model.encoder.layers[1]
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x, step: forward(x, step) + x.sum().tolist() * 0)
    with pytest.raises(Forbidden):
        model.capture_encoder(None, EncoderSizes(24, 20), FakeGraphRunner(), CaptureTime())


@pytest.mark.parametrize("name", ["longt5", "led", "llama-dynamic"])
@torch.inference_mode()
def test_encoders_that_cannot_be_captured_say_why(saved, exact, name: str) -> None:
    model = load(saved, name)
    reason = model.why_encoder_not_captured()
    expected = (
        "rotations that depend on the length of the text" if "dynamic" in name else "attention over full sequences"
    )
    assert reason == expected
    assert model.capture_encoder(None, EncoderSizes(24, 20), FakeGraphRunner(), CaptureTime()) is None


def test_a_capture_ends_when_its_time_is_over(saved, exact, few_sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_graphs, "sizes_up_to", lambda tokens: (8, 16, 24))
    now = iter([0.0, 0.0, 1.0, 3.0])
    time = CaptureTime(2.0, lambda: next(now))
    with torch.inference_mode():
        graphs = load(saved, "bert").capture_encoder(None, EncoderSizes(24, 20), StillDevice(None), time)
    assert graphs.sizes == (8, 24), "the largest, then from the smallest on"
    assert (time.num_captured, time.num_left_out) == (2, 1)


@LONG
def test_the_engine_computes_the_same_vectors(pairs, exact, few_sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pairs("bert")
    pair = replace(
        pair, loaded=replace(pair.loaded, model=load_model(Path(pair.loaded.spec.directory), torch.float32, DEVICE))
    )
    fake = FakeGraphRunner()
    monkeypatch.setattr(graph_runner, "CudaGraphRunner", lambda device: fake)
    requests = [
        Encode(number, "bert", "embed", [EncodeItem(text) for text in TEXTS], pooling=pooling)
        for number, pooling in enumerate(("mean", "cls"))
    ]
    found = []
    for captured in (False, True):
        engine = pair.engine(max_encode_tokens=20)
        if captured:
            assert engine.models["bert"].encoding.runner.capture_steps(None, EncoderSizes(24, 20)) == {}
        results = run(engine, requests)
        found.append({key: np.frombuffer(value, "<f4") for key, value in results.encoded.items()})
        assert ("replay" in fake.log) == captured
    for key, vector in found[0].items():
        np.testing.assert_allclose(found[1][key], vector, rtol=1e-6, atol=1e-6)
