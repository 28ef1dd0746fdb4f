"""Norms, activations, feed-forward, embeddings and pooling equal their definitions or transformers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from models.backends import choice
from models.backends.torch.activations import ACTIVATIONS
from models.config import (
    EmbeddingConfig,
    FeedForwardConfig,
    LearnedPositions,
    NormConfig,
    NormSlots,
    SinusoidalPositions,
)
from models.layers.embeddings import Embedding
from models.layers.feed_forward import FeedForward
from models.layers.norms import SublayerNorms, make_norm
from models.layers.pooling import normalize, pool
from models.layers.positions import sinusoids
from models.steps.batch import EncoderBatch


def randomize(module):
    for tensor in module.parameters():
        tensor.copy_(torch.randn_like(tensor))
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_equals_llama(dtype):
    ours = randomize(make_norm(NormConfig("rms", 1e-5, bias=False), 16)).to(dtype)
    theirs = LlamaRMSNorm(16, 1e-5).to(dtype)
    theirs.weight.data.copy_(ours.weight)
    x = (30 * torch.randn(5, 16)).to(dtype)
    with choice.using("torch"):
        torch.testing.assert_close(ours(x), theirs(x).detach(), atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_from_one_equals_gemma(dtype):
    ours = randomize(make_norm(NormConfig("rms_from_one", 1e-5, bias=False), 16)).to(dtype)
    theirs = GemmaRMSNorm(16, 1e-5).to(dtype)
    theirs.weight.data.copy_(ours.weight)
    x = (30 * torch.randn(5, 16)).to(dtype)
    with choice.using("torch"):
        torch.testing.assert_close(ours(x), theirs(x).detach(), atol=0, rtol=0)


def test_layer_norm_equals_its_definition():
    norm = randomize(make_norm(NormConfig("layer", 1e-3), 16))
    x = torch.randn(5, 16)
    expected = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-3)
    torch.testing.assert_close(norm(x), expected * norm.weight + norm.bias, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("slots", [(), ("input",), ("residual",), ("input", "output"), ("input", "output", "residual")])
def test_norm_slots_are_applied_in_order(slots):
    config = NormConfig("layer", 1e-5)
    norms = randomize(SublayerNorms(NormSlots(**dict.fromkeys(slots, config)), 8))

    def slot(name, value):
        if name not in slots:
            return value
        norm = getattr(norms, name)
        return F.layer_norm(value, (8,), norm.weight, norm.bias, 1e-5)

    x = torch.randn(3, 8)
    expected = slot("residual", x + slot("output", torch.sin(slot("input", x))))
    torch.testing.assert_close(norms.add_residual(x, torch.sin(norms.norm_input(x))), expected)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("relu", "relu"),
        ("relu_squared", "relu2"),
        ("gelu", "gelu"),
        ("gelu_tanh", "gelu_new"),
        ("gelu_tanh", "gelu_fast"),
        ("gelu_quick", "quick_gelu"),
        ("silu", "silu"),
        ("sigmoid", "sigmoid"),
        ("tanh", "tanh"),
    ],
)
def test_activations_equal_transformers(ours, theirs):
    x = torch.linspace(-6, 6, 101)
    torch.testing.assert_close(ACTIVATIONS[ours](x), ACT2FN[theirs](x), atol=1e-6, rtol=1e-6)


def test_gated_feed_forward_equals_its_definition():
    layer = randomize(FeedForward(FeedForwardConfig(12, "silu", gated=True), 8))
    x = torch.randn(3, 8)
    gate, up = (F.linear(x, part.weight, part.bias) for part in (layer.gate, layer.up))
    expected = F.linear(F.silu(gate) * up, layer.down.weight, layer.down.bias)
    torch.testing.assert_close(layer(x), expected)


def test_embedding_is_the_normalised_sum_of_its_tables():
    config = EmbeddingConfig(20, 3.0, LearnedPositions(10), num_token_types=2, norm=NormConfig("layer", 1e-5))
    table = randomize(Embedding(config, 8))
    ids, positions, types = torch.tensor([4, 19]), torch.tensor([9, 0]), torch.tensor([1, 0])

    def expected(types):
        x = 3.0 * table.tokens.weight[ids] + table.positions.weight[positions] + table.token_types.weight[types]
        return F.layer_norm(x, (8,), table.norm.weight, table.norm.bias, 1e-5)

    torch.testing.assert_close(table(ids, positions, types), expected(types))
    torch.testing.assert_close(table(ids, positions), expected(torch.tensor([0, 0])))


def test_single_token_type_is_used_for_every_token():
    table = randomize(Embedding(EmbeddingConfig(20, num_token_types=1), 8))
    ids = torch.tensor([4, 19])
    found = table(ids, torch.tensor([0, 1]), torch.tensor([0, 1]))
    torch.testing.assert_close(found, table.tokens.weight[ids] + table.token_types.weight[0])


def test_narrow_embeddings_are_normalised_and_then_projected():
    table = randomize(Embedding(EmbeddingConfig(20, norm=NormConfig("layer", 1e-5), width=4), 8))
    ids = torch.tensor([4, 19])
    normed = F.layer_norm(table.tokens.weight[ids], (4,), table.norm.weight, table.norm.bias, 1e-5)
    expected = F.linear(normed, table.projection.weight, table.projection.bias)
    torch.testing.assert_close(table(ids, torch.tensor([0, 1])), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinusoidal_embedding_has_no_parameters(dtype):
    table = randomize(Embedding(EmbeddingConfig(20, positions=SinusoidalPositions(10)), 8)).to(dtype)
    assert [name for name, _ in table.named_parameters()] == ["tokens.weight"]
    ids, positions = torch.tensor([4, 19]), torch.tensor([9, 0])
    assert torch.equal(table(ids, positions), table.tokens.weight[ids] + sinusoids(10, 8)[positions].to(dtype))


def test_pooling_of_a_ragged_batch_equals_its_definition():
    lengths = (3, 1, 4)
    batch = EncoderBatch(torch.zeros(8, dtype=torch.int64), lengths)
    hidden = torch.randn(8, 5).to(torch.bfloat16)
    parts = hidden.float().split(lengths)
    expected = {
        "mean": [part.sum(0) / len(part) for part in parts],
        "cls": [part[0] for part in parts],
        "last": [part[-1] for part in parts],
        "max": [part.max(0).values for part in parts],
    }
    for mode, vectors in expected.items():
        pooled = pool(hidden, batch, mode)
        assert pooled.dtype == torch.float32
        torch.testing.assert_close(pooled, torch.stack(vectors))


def test_normalize_keeps_a_zero_vector():
    vectors = normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    torch.testing.assert_close(vectors, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
