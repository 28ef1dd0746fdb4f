"""int8 models compute attention in bfloat16, which loses little precision compared with the rounding to int8."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import pytest
import torch

from models.backends import choice, linear_weights
from models.backends.cpu import linear as cpu_linear
from models.backends.linear_weights import DenseWeight
from models.checkpoint.loader import load_model
from models.layers.attention import Attention
from tests.engine.tiny_checkpoints import DECODERS, ENCODERS, SEQ2SEQ
from tests.models.int8_reference import ReferenceInt8Weight
from tests.parity.paged import Rows, encoder_batch, one_shot

CPU = torch.device("cpu")
NAMES = ["gpt2", "llama", "qwen3", "olmo2", "stablelm", "bloom", "falcon", "gemma3", "bart", "marian", "t5", "bert"]
"""Test models. They cover all query and key norms, all kinds of score biases, and capped scores."""
TEXTS = [[5 + 7 * place % 53 for place in range(length)] for length in (24, 13, 24, 7)]

pytestmark = pytest.mark.usefixtures("kernels")


@contextmanager
def int8_reference(monkeypatch):
    """Context manager that selects the torch backend, with `ReferenceInt8Weight` for quantised products."""
    with choice.using("torch"), monkeypatch.context() as patch:
        patch.setattr(choice, "check_quantization", lambda *_: None)
        patch.setattr(
            linear_weights,
            "packer",
            lambda dtype, device, quantization, out_dtype, memory=None: (
                partial(ReferenceInt8Weight, out_dtype=out_dtype) if quantization else DenseWeight
            ),
        )
        yield


@pytest.fixture
def directory(saved, name):
    architecture, config = (DECODERS | SEQ2SEQ | ENCODERS)[name]
    return saved(config, architecture)


@torch.inference_mode()
def numbers(directory, name, quantization="int8"):
    """The logits of `TEXTS`, or their hidden states for an encoder."""
    model = load_model(directory, torch.float32, CPU, quantization=quantization).transformer
    if name in ENCODERS:
        return model.encode(encoder_batch(TEXTS, CPU))
    sources = [text[::-1] for text in TEXTS] if name in SEQ2SEQ else None
    return torch.cat([model.logits(hidden) for hidden in one_shot(Rows(model, sources), TEXTS)])


def spread(difference) -> float:
    return float(difference.square().mean().sqrt())


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_attention_loses_less_than_int8(directory, name, monkeypatch):
    exact, found = numbers(directory, name, None), numbers(directory, name)
    monkeypatch.setattr(linear_weights, "attention_dtype", lambda dtype, quantization: dtype)
    before = numbers(directory, name)
    assert not torch.equal(found, before)
    # The median ratio over all families is 1.00. Single ratios vary, because the models are tiny.
    assert spread(found - exact) < 1.25 * spread(before - exact)
    assert spread(found - exact) < (0.1 if name == "t5" else 0.04) * exact.std()


@pytest.mark.parametrize("name", NAMES)
def test_kernels_and_reference_differ_by_less_than_int8_loses(directory, name, monkeypatch):
    exact, found = numbers(directory, name, None), numbers(directory, name, "int8-fast")
    with int8_reference(monkeypatch):
        expected = numbers(directory, name, "int8-fast")
    assert spread(found - expected) < spread(found - exact)
    assert spread(found - expected) < (0.05 if name == "t5" else 0.03) * exact.std()


@pytest.mark.parametrize("way", ["torch", "cpu"])
@pytest.mark.parametrize("name", ["qwen3", "stablelm", "bart", "led", "mpt"])
@torch.inference_mode()
def test_dtypes_around_attention(directory, name, way, monkeypatch):
    with int8_reference(monkeypatch) if way == "torch" else choice.using("cpu"):
        model = load_model(directory, torch.float32, CPU, quantization="int8-fast").transformer
        assert (model.dtype, model.attention_dtype) == (torch.float32, torch.bfloat16)
        for part in (module for module in model.modules() if isinstance(module, Attention)):
            inner = torch.bfloat16 if type(part) is Attention else torch.float32
            hidden = torch.randn(3, model.config.hidden_size)
            projected = (
                (part.query(hidden), part.key(hidden)) if part.merged is None else (part.merged.multiply(hidden),)
            )
            assert {tensor.dtype for tensor in projected} == {inner}
            width = part.config.num_heads * part.config.head_dim
            assert part.output(torch.randn(3, width, dtype=inner)).dtype == torch.float32
            for norm in (part.query_norm, part.key_norm):
                assert norm is None or {weight.dtype for weight in norm.parameters()} == {inner}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_keeps_half_precision(dtype):
    assert linear_weights.attention_dtype(dtype, "int8") == linear_weights.attention_dtype(dtype, None) == dtype
    assert linear_weights.attention_dtype(torch.float32, None) == torch.float32


@pytest.mark.parametrize("reads", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_products_with_another_output_dtype(reads, out_dtype):
    weight, bias, x = torch.randn(70, 33), torch.randn(70), torch.randn(40, 33).to(reads)
    products = [kind(weight, bias, out_dtype) for kind in (cpu_linear.Int8Weight, ReferenceInt8Weight)]
    found, expected = (product.multiply(x) for product in products)
    assert found.dtype == expected.dtype == out_dtype
    bound = 1e-5 if out_dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, atol=bound, rtol=bound)
    assert torch.equal(products[0].multiply(x[7:9]), found[7:9])
