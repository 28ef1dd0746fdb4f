"""Models computed by the Triton kernels (in Triton's interpreter on a CPU) agree with the torch reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.backends import choice
from models.backends.choice import backend
from models.backends.rounded_slots import FP8
from models.backends.torch.backend import TORCH
from models.backends.torch.sampling import Filters, TorchSampling
from models.checkpoint.loader import load_model
from models.layers.attention import Attention
from models.layers.feed_forward import FeedForward
from tests.engine.tiny_checkpoints import DECODERS, ENCODERS, SEQ2SEQ
from tests.parity.paged import Rows, encoder_batch

TEXTS = [[5, 6, 7, 8, 9], [11, 3], [30]]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def model_of(saved, name: str, backend: str):
    architecture, config = (DECODERS | ENCODERS | SEQ2SEQ)[name]
    with choice.using(backend):
        return load_model(saved(config, architecture), torch.float32, DEVICE).transformer


@torch.inference_mode()
def hidden_states(model, backend: str, cache_dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """Prefill of two rows, a step with prefill and decoding, and a step of decoding alone.

    cache_dtype: dtype of keys and values in the cache; None for that of attention.
    """
    sources = [text[::-1] for text in TEXTS] if model.encoder is not None else None
    with choice.using(backend):
        rows = Rows(model, sources, dtype=cache_dtype)
        rows.expect([[*text, 9, 9] for text in TEXTS])
        parts = rows.feed({0: TEXTS[0], 1: TEXTS[1]})
        parts += rows.feed({1: [9], 2: TEXTS[2], 0: [9]})
        return parts + rows.feed({0: [9], 1: [9], 2: [9]})


LONG = [pytest.param(name, marks=pytest.mark.many_shapes) for name in ("gemma2", "gpt-oss", "t5")]


@pytest.mark.parametrize("name", ["qwen3", "llama", *LONG])
def test_a_decoder_agrees_with_the_reference(saved, name: str) -> None:
    expected = hidden_states(model_of(saved, name, "torch"), "torch")
    actual = hidden_states(model_of(saved, name, "cuda"), "cuda")
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_an_encoder_agrees_with_the_reference(saved) -> None:
    results = []
    for name in ("torch", "cuda"):
        model = model_of(saved, "bert", name)
        with choice.using(name):
            results.append(model.encode(encoder_batch(TEXTS, DEVICE)))
            attended = replace(encoder_batch(TEXTS, DEVICE), attended=(3, 2, 1))
            results.append(model.encode(attended))
    torch.testing.assert_close(results[2], results[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(results[3], results[1], rtol=1e-4, atol=1e-4)


def test_projections_are_merged(saved) -> None:
    merged, plain = (model_of(saved, "llama", backend) for backend in ("cuda", "torch"))
    attention = [module for module in merged.modules() if isinstance(module, Attention)]
    feed_forwards = [module for module in merged.modules() if isinstance(module, FeedForward)]
    assert all(module.merged is not None and module.separable for module in attention) and attention
    assert all(module.stores_keys for module in attention)
    assert all(module.merged is not None for module in feed_forwards) and feed_forwards
    assert all(module.merged is None for module in plain.modules() if isinstance(module, Attention | FeedForward))
    first = merged.decoder.layers[0]
    product = first.feed_forward.merged.multiply(torch.ones(1, merged.config.hidden_size, device=DEVICE))
    parts = [
        part(torch.ones(1, merged.config.hidden_size, device=DEVICE))
        for part in (first.feed_forward.gate, first.feed_forward.up)
    ]
    torch.testing.assert_close(product, torch.cat(parts, -1))


def test_the_weights_of_merged_projections_are_counted_once(saved) -> None:
    architecture, config = DECODERS["llama"]
    sizes = []
    for name in ("torch", "cuda"):
        with choice.using(name):
            sizes.append(load_model(saved(config, architecture), torch.float32, DEVICE).weight_bytes)
    assert sizes[0] == sizes[1]


def test_top_k_and_draws_agree_with_the_reference() -> None:
    logits = torch.randn(4, 300, device=DEVICE)
    filters = [Filters(0.7), Filters(1.0, top_k=5), Filters(1.3, top_p=0.8), Filters(0.9, min_p=0.05)]
    uniforms = np.array([0.1, 0.5, 0.9, 0.3])
    with choice.using("cuda"):
        top_k = backend(logits).logits_top_k(logits, 3, True)
        drawn = backend(logits).draw(logits, filters, uniforms)
        typical = backend(logits).draw(logits, [replace(row, typical_p=0.5) for row in filters], uniforms)
        many = backend(logits).logits_top_k(logits, 200)
    with choice.using("torch"):
        for one, other in zip(top_k, backend(logits).logits_top_k(logits, 3, True), strict=True):
            torch.testing.assert_close(one, other)
        assert torch.equal(many.ids, backend(logits).logits_top_k(logits, 200).ids)
    assert torch.equal(drawn.tokens, TORCH.draw(logits, filters, uniforms).tokens)
    expected = TORCH.draw(logits, [replace(row, typical_p=0.5) for row in filters], uniforms)
    assert torch.equal(typical.tokens, expected.tokens)


def test_a_row_with_typical_p_does_not_change_how_others_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows with typical_p, which the kernel lacks, are drawn by the reference."""
    reference, computed = TorchSampling.draw, []

    def draw(self, logits, rows, uniforms):
        computed.extend(rows)
        return reference(self, logits, rows, uniforms)

    monkeypatch.setattr(TorchSampling, "draw", draw)
    logits, uniforms = torch.randn(4, 300, device=DEVICE), np.array([0.1, 0.5, 0.9, 0.3])
    rows = [Filters(0.7), Filters(1.0, typical_p=0.5), Filters(1.3, top_p=0.8), Filters(0.9, top_k=9, typical_p=0.8)]
    with choice.using("cuda"):
        together = backend(logits).draw(logits, rows, uniforms)
        assert computed == [rows[1], rows[3]]
        for index, row in enumerate(rows):
            alone = backend(logits).draw(logits[index : index + 1], [row], uniforms[index : index + 1])
            for one, other in zip(alone, together, strict=True):
                assert torch.equal(one, other[index : index + 1])


def test_only_devices_with_kernels_take_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not choice.runs_cuda_kernels(torch.device("cpu"))
    capability = (8, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    has_triton = choice._has_triton.__wrapped__
    assert has_triton(torch.device("cuda", 0)) and not has_triton(torch.device("cpu"))
    capability = (7, 5)
    assert not has_triton(torch.device("cuda", 0)), "the kernels are compiled for compute capability 8.0 and later"
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    capability = (8, 0)
    assert not has_triton(torch.device("cuda", 0)), "triton is not installed"


@pytest.mark.parametrize("dtype", [torch.int8, FP8], ids=["int8", "fp8"])
@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.many_shapes) for name in ("t5", "deepseek-v3"))]
)
@torch.inference_mode()
def test_a_decoder_with_a_rounded_cache_agrees_with_the_reference(saved, name: str, dtype: torch.dtype) -> None:
    expected = hidden_states(model_of(saved, name, "torch"), "torch", dtype)
    exact = hidden_states(model_of(saved, name, "torch"), "torch")
    actual = hidden_states(model_of(saved, name, "cuda"), "cuda", dtype)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert not all(torch.allclose(one, other, atol=1e-6) for one, other in zip(exact, expected, strict=True))
