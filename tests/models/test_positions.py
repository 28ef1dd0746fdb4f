"""Rotary, sinusoidal, bucket and ALiBi positions equal transformers or their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaConfig, MarianConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from models.backends.choice import backend
from models.config import (
    AlibiConfig,
    BucketBiasConfig,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeConfig,
    YarnScaling,
)
from models.families.shared.alibi import bloom_slopes, mpt_slopes
from models.layers.positions import (
    Alibi,
    BucketBias,
    Rotary,
    bucket_of_distance,
    fairseq_sinusoids,
    inverse_frequencies,
    sinusoids,
)

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
SCALINGS = {
    "yarn": (YarnScaling(4.0, 8192, 32.0, 1.0, True, 0.1 * math.log(4.0) + 1.0), _YARN),
    "yarn-whole-waves": (
        YarnScaling(4.0, 8192, 16.0, 2.0, False, 1.2),
        {**_YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.2},
    ),
    "default": (None, {"rope_type": "default"}),
    "linear": (LinearScaling(4.0), {"rope_type": "linear", "factor": 4.0}),
    "llama3": (
        Llama3Scaling(8.0, 1.0, 4.0, 8192),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_half_pairing_equals_llama(name):
    scaling, theirs = SCALINGS[name]
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=131072,
        rope_parameters={**theirs, "rope_theta": 500000.0},
    )
    positions = torch.tensor([0, 1, 2, 77, 5000])
    query, key = torch.randn(5, 2, 128), torch.randn(5, 2, 128)
    cos, sin = LlamaRotaryEmbedding(config)(query, positions[None])
    expected = apply_rotary_pos_emb(query, key, cos[0], sin[0], unsqueeze_dim=1)
    rotation = Rotary(RopeConfig(500000.0, 128, scaling=scaling))(positions, int(positions.max()) + 1)
    for x, rotated in zip((query, key), expected, strict=True):
        torch.testing.assert_close(backend(x).rotate(x, rotation, False), rotated, atol=1e-4, rtol=1e-4)


BY_LENGTH = {
    "dynamic": (DynamicScaling(4.0, 64), {"rope_type": "dynamic", "factor": 4.0}),
    "longrope": (
        LongScaling(tuple(range(1, 9)), tuple(range(3, 11)), 48, 1.3),
        {
            "rope_type": "longrope",
            "short_factor": list(range(1, 9)),
            "long_factor": list(range(3, 11)),
            "attention_factor": 1.3,
            "original_max_position_embeddings": 48,
        },
    ),
}


@pytest.mark.parametrize("length", [1, 47, 48, 49, 63, 64, 65, 200])
@pytest.mark.parametrize("name", BY_LENGTH)
def test_scalings_by_sequence_length_equal_llama(name, length):
    scaling, theirs = BY_LENGTH[name]
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64}
    oracle = LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters={**theirs, "rope_theta": 500.0}))
    positions = torch.arange(length)
    cos, sin = oracle(torch.zeros(1), positions[None])
    rotation = Rotary(RopeConfig(500.0, 16, scaling=scaling))(positions, length, torch.full((length,), length))
    torch.testing.assert_close(rotation.cos[:, 0], cos[0, :, :8], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(rotation.sin[:, 0], sin[0, :, :8], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_each_pair_is_rotated_by_its_angle(interleaved):
    """Rotary embedding multiplies each pair (a, b), as the complex number a + bi, by e^(i * position * frequency)."""
    config = RopeConfig(100.0, 6, "interleaved" if interleaved else "half")
    positions, x = torch.tensor([0, 3, 11]), torch.randn(3, 2, 10)
    rotation = Rotary(config)(positions, int(positions.max()) + 1)
    rotated = backend(x).rotate(x, rotation, interleaved)
    for token, position in enumerate(positions.tolist()):
        for pair in range(3):
            first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + 3)
            angle = position * 100.0 ** (-2 * pair / 6)
            for head in range(2):
                value = complex(x[token, head, first], x[token, head, second])
                value *= complex(math.cos(angle), math.sin(angle))
                assert rotated[token, head, first].item() == pytest.approx(value.real, abs=1e-5)
                assert rotated[token, head, second].item() == pytest.approx(value.imag, abs=1e-5)
    assert torch.equal(rotated[..., 6:], x[..., 6:])


def test_rotated_scores_depend_only_on_the_distance():
    rotary = Rotary(RopeConfig(10000.0, 16))
    query, key = torch.randn(1, 1, 16).double(), torch.randn(1, 1, 16).double()

    def score(query_position, key_position):
        rotated = []
        for x, position in ((query, query_position), (key, key_position)):
            rotation = rotary(torch.tensor([position]), position + 1)
            rotated.append(backend(x).rotate(x, rotation, False))
        return (rotated[0] * rotated[1]).sum().item()

    assert score(9, 4) == pytest.approx(score(25, 20), abs=1e-4)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-4)


def test_frequencies_are_on_the_cpu_for_a_model_on_the_meta_device():
    with torch.device("meta"):
        assert inverse_frequencies(RopeConfig(10000.0, 8)).device.type == "cpu"
        assert sinusoids(4, 6).device.type == "cpu"


@pytest.mark.parametrize("width", [8, 7])
def test_sinusoids_equal_marian(width):
    config = MarianConfig(d_model=width)
    table = MarianSinusoidalPositionalEmbedding(50, config.d_model)
    expected = table.create_weight() if hasattr(table, "create_weight") else table.weight
    torch.testing.assert_close(sinusoids(50, width), expected.detach(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("width", [8, 7, 2])
def test_sinusoids_of_fairseq_equal_m2m_100(width):
    if width > 2:  # transformers divides by zero for a single pair of dimensions.
        theirs = M2M100SinusoidalPositionalEmbedding(50, width, padding_idx=1)
        expected = theirs(torch.full((1, 40), 5))[0]
        assert torch.equal(fairseq_sinusoids(40, width, first=2), expected)
        assert not torch.allclose(fairseq_sinusoids(40, width, first=1), expected)
    assert torch.isfinite(fairseq_sinusoids(40, width, first=0)).all()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20), (16, 64)])
def test_buckets_equal_t5(bidirectional, buckets, farthest):
    distance = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(distance, bidirectional, buckets, farthest)
    assert torch.equal(bucket_of_distance(distance, BucketBiasConfig(buckets, farthest, bidirectional)), expected)


def test_bucket_bias_has_one_value_per_distance():
    config = BucketBiasConfig(8, 20, bidirectional=True)
    bias = BucketBias(config, num_heads=3)
    bias.weight.copy_(torch.randn(8, 3))
    table = bias(12)
    assert table.shape == (3, 23)
    for distance in (-11, -1, 0, 4, 11):
        bucket = bucket_of_distance(torch.tensor(distance), config)
        assert torch.equal(table[:, distance + 11], bias.weight[bucket])


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12, 71])
def test_alibi_slopes_equal_bloom_and_mpt(heads):
    """ALiBi slopes equal those of Bloom and MPT in transformers.

    Their biases differ from ours by a constant for each query, which does not change the softmax.
    """
    bloom = build_alibi_tensor(torch.ones(1, 5), heads, torch.float32)[:, 0]
    mpt = build_mpt_alibi_tensor(heads, 5)[:, 0]
    for slopes, theirs in ((bloom_slopes(heads), bloom), (mpt_slopes(heads), mpt)):
        table = Alibi(AlibiConfig(slopes))(5, torch.float32, torch.device("cpu"))
        assert table.shape == (heads, 9)
        torch.testing.assert_close(table[:, :5] - table[:, :1], theirs - theirs[:, :1])
        assert (table[:, 4] == 0).all() and (table[:, 3] < 0).all()
