"""A decoder with outlier channels, as in real models, keeps its predictions in int8.

In these channels, the inputs of matrix products are much larger than in others. Models with random weights have no such
channels, and therefore hide the loss caused by one scale for all activations of a token.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.quality.decoders import Decoder, compare
from benchmarks.quality.divergence import Divergence
from models.backends.choice import Quantization
from tests.parity.checkpoints import random_ids, write_model

WIDTH, MIDDLE, LAYERS, VOCAB = 256, 512, 4, 211
CHANNELS = {3: 30.0, 100: 100.0, 170: 60.0}
"""Index of each outlier channel → factor by which its values are larger."""
BOUND = 0.03
"""Largest allowed mean divergence of `int8` from float32, in nats."""

pytestmark = pytest.mark.usefixtures("kernels")


def enlarge(model: LlamaForCausalLM) -> None:
    """Multiply the channels in `CHANNELS` at the input of each matrix product by their factors.

    The weights that these channels are multiplied by are divided by the square roots of the factors.
    """
    for layer in model.model.layers:
        attention, feed_forward = layer.self_attn, layer.mlp
        for channel, factor in CHANNELS.items():
            for norm, readers in (
                (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
                (layer.post_attention_layernorm, (feed_forward.gate_proj, feed_forward.up_proj)),
            ):
                norm.weight[channel] *= factor
                for reader in readers:
                    reader.weight[:, channel] /= factor**0.5
            for writer, reader in (
                (attention.v_proj, attention.o_proj),
                (feed_forward.up_proj, feed_forward.down_proj),
            ):
                writer.weight[channel] *= factor
                reader.weight[:, channel] /= factor**0.5


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("outliers")
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=MIDDLE,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
    )
    with torch.no_grad():
        write_model(directory, config, "LlamaForCausalLM", std=0.04, change=enlarge)
    return directory


def measured(checkpoint: Path, quantization: Quantization) -> Divergence:
    exact, found = Decoder(checkpoint, torch.float32), Decoder(checkpoint, torch.float32, quantization)
    return compare(exact, found, random_ids(VOCAB, (100, 64, 90)))


def test_int8_stays_close_and_a_scale_per_token_does_not(checkpoint: Path) -> None:
    close, rough = measured(checkpoint, "int8"), measured(checkpoint, "int8-fast")
    assert close.mean_kl < BOUND < rough.mean_kl, "int8-fast has one scale for all activations of a token"
    assert close.same_top > rough.same_top
    assert close.p99_kl < 0.5 * rough.p99_kl
