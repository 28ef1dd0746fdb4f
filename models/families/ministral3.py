"""Ministral 3 (Mistral AI 2025): Mistral with queries that grow with their position, and without windows by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ConfigError, ModelConfig, QueryScale
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rms_norm,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)

_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"vocab_size": 131072})
    if fields.raw("rope_parameters") is None and fields.raw("rope_scaling") is None:
        fields = Fields(hf, defaults={"vocab_size": 131072, "rope_parameters": _ROPE})
    fields.refuse_unless("layer_types")
    head_dim, norm = head_dim_of(fields, fields.raw("head_dim", 128)), rms_norm(fields, 1e-5)
    rope = rope_config(fields, head_dim)
    # Null means one head for keys and values per query head; absent means eight heads.
    kv_heads = fields.integer("num_attention_heads", 32) if "num_key_value_heads" in hf else 8
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", kv_heads),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(fields, fields.integer("intermediate_size", 14336)),
        window=fields.optional_integer("sliding_window"),
        query_scale=_query_scale(fields),
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 34)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 262144))
    return rotary_decoder(fields, layers, norm, max_positions)


def _query_scale(fields: Fields) -> QueryScale:
    settings = fields.raw("rope_scaling") or fields.raw("rope_parameters")
    if not isinstance(settings, dict):
        raise ConfigError("'rope_parameters' must be an object")
    inner = Fields(settings)
    return QueryScale(inner.number("llama_4_scaling_beta"), inner.integer("original_max_position_embeddings"))


FAMILY = decoder_family(
    "ministral3",
    "Ministral3",
    config,
    rotary_rules,
    pad_token_id=11,
)
