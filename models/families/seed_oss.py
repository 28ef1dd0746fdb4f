"""Seed-OSS (ByteDance Seed 2025): LLaMA with biases of queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import (
    INPUT_NORM_AFTER_ATTENTION,
    GgufFamily,
    Settings,
    has_bias,
    rms_eps,
    rotary_settings,
)
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 155136,
    "hidden_size": 4096,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "max_position_embeddings": 524288,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    return llama_decoder(
        fields,
        gated_feed_forward(fields, bias=fields.flag("mlp_bias", False)),
        head_dim=head_dim_of(fields, fields.raw("head_dim", 128)),
        # Null means one head of keys and values per query head; absent means eight heads.
        num_kv_heads=fields.optional_integer("num_key_value_heads", absent=8),
        qkv_bias=fields.flag("attention_bias", True),
        output_bias=fields.flag("attention_out_bias", False),
    )


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(
        of,
        model_type="seed_oss",
        attention_bias=has_bias(of, "attn_q"),
        attention_out_bias=has_bias(of, "attn_output"),
        mlp_bias=has_bias(of, "ffn_up"),
        **rms_eps(of),
    )


FAMILY = decoder_family(
    "seed_oss",
    "SeedOss",
    config,
    rotary_rules,
    pad_token_id=1,
    gguf=GgufFamily({"seed_oss": gguf_settings}, norms=INPUT_NORM_AFTER_ATTENTION),
)
