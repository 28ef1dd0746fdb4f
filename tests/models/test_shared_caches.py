"""KV caches of layers whose keys also serve as values, and of layers that use the keys and values of another layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.backends import choice
from models.checkpoint.kept_quantized import kept_quantized
from models.config import AttentionConfig, ConfigError, LatentAttentionConfig, NormConfig, RopeConfig, StackConfig
from models.steps.kv_cache import KVCache
from models.transformer import Transformer
from tests.models.family_bases import BASES, build
from weights.quantized_matrix import QuantizedMatrix

PLAIN = AttentionConfig(4, 2, 8, 1.0, causal=True)
LATENT = LatentAttentionConfig(
    *(4, 1, 24, 1.0, True),
    rope=RopeConfig(10000.0, 8),
    latent_dim=16,
    plain_dim=12,
    value_dim=10,
    query_rank=None,
    norm=NormConfig("rms", 1e-6),
)


def cache(*layers):
    return KVCache(layers, 3, 2, torch.float32, torch.device("cpu"))


def test_a_latent_cache_stores_keys_once():
    made = cache(PLAIN, LATENT)
    assert made.values[1] is made.keys[1] and made.values[0] is not made.keys[0]
    numbers = 2 * (2 * 2 * 8) + 2 * (1 * 24)
    assert KVCache.block_bytes((PLAIN, LATENT), 2, torch.float32) == 4 * numbers


def test_a_layer_that_reads_another_one_has_no_memory():
    reader = replace(PLAIN, key_value_layer=0)
    made = cache(PLAIN, reader)
    assert made.keys[1] is made.keys[0] and made.values[1] is made.values[0]
    both, one = (KVCache.block_bytes(layers, 2, torch.float32) for layers in ((PLAIN, reader), (PLAIN,)))
    assert both == one


def test_blocks_are_copied_and_cleared_in_all_layers():
    made = cache(PLAIN, replace(PLAIN, key_value_layer=0), LATENT)
    for number, tensor in enumerate((made.keys[0], made.values[0], made.keys[2])):
        tensor[0] = number + 1.0
    made.copy_blocks([(0, 2, 0, 2)])
    for number, tensor in enumerate((made.keys[0], made.values[0], made.keys[2])):
        assert (tensor[2] == number + 1).all() and not tensor[1].any()
    made.clear([0])
    assert not any(tensor[0].any() for tensor in (*made.keys, *made.values)) and made.keys[2][2].all()


@pytest.mark.parametrize("owner", [1, 2, -1])
def test_layers_read_only_earlier_layers_that_have_keys(owner):
    decoder = build(BASES["llama"]).decoder
    first, second, third, *_ = decoder.layers
    second = replace(second, attention=replace(second.attention, key_value_layer=0))
    third = replace(third, attention=replace(third.attention, key_value_layer=owner))
    with pytest.raises(ConfigError, match=r"layer 2 cannot read|layer 1 has no keys"):
        StackConfig(decoder.embedding, (first, second, third))


@pytest.mark.parametrize(("path", "is_kept"), [("query", True), ("key_heads.1", False), ("value_heads.0", False)])
def test_matrices_of_latent_heads_are_dequantized(path, is_kept):
    """The matrices of latent heads are dequantised, because they are not packed.

    Only packed matrices can be multiplied in their quantised form.
    """
    with torch.device("meta"):
        model = Transformer(build(BASES["deepseek_v3"] | {"n_group": 1, "topk_group": 1, "n_routed_experts": 4}))
    name = f"decoder.layers.0.attention.{path}.weight"
    width = model.get_submodule(name.removesuffix(".weight")).weight.shape[1]
    codes, scales = torch.zeros(8, width, dtype=torch.int8), torch.ones(8, 1)
    matrix, cpu = QuantizedMatrix(codes, 8, width, scales), torch.device("cpu")
    if not choice.kernels_are_built:
        pytest.skip("the compiled kernels were not built")
    assert (name in kept_quantized(model, torch.float32, cpu, {name: matrix})) is is_kept
