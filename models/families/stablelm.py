"""StableLM (Bellagente et al. 2024, arXiv:2402.17834): LLaMA with layer norms and partly rotating heads.

A quarter of each head rotates. In some checkpoints attention and feed-forward run in parallel after one norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig, NormConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)
from weights.rules import Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    head_dim, eps = head_dim_of(fields), fields.number("layer_norm_eps", 1e-5)
    norm, head_norm = NormConfig("layer", eps), QueryKeyNorm(NormConfig("layer", eps, bias=False), "own_head")
    rope = rope_config(fields, head_dim, default_share=0.25)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", 32),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(fields, fields.integer("intermediate_size")),
        qkv_bias=fields.flag("use_qkv_bias", False),
        query_key_norm=head_norm if fields.flag("qk_layernorm", False) else None,
        parallel=fields.flag("use_parallel_residual", False),
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 32)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 4096))
    return rotary_decoder(fields, layers, norm, max_positions)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    heads = r"model\.layers\.(\d+)\.self_attn\."
    return (
        Rename(heads + r"q_layernorm\.norms\.(\d+)\.weight", r"decoder.layers.\1.attention.query_norm.heads.\2.weight"),
        Rename(heads + r"k_layernorm\.norms\.(\d+)\.weight", r"decoder.layers.\1.attention.key_norm.heads.\2.weight"),
        *rotary_rules(model, hf, architecture),
    )


FAMILY = decoder_family(
    "stablelm",
    "StableLm",
    config,
    rules,
    answers=False,
)
