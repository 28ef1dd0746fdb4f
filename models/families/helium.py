"""Helium (Kyutai 2025): LLaMA whose rotary positions rotate pairs of neighbouring dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, llama_decoder, rotary_rules

_DEFAULTS = {
    "vocab_size": 48000,
    "hidden_size": 2560,
    "intermediate_size": 7040,
    "num_hidden_layers": 24,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "max_position_embeddings": 4096,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-08,
    "rope_theta": 100000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    return llama_decoder(
        fields,
        gated_feed_forward(fields, bias=fields.flag("mlp_bias", False)),
        rope=rope_config(fields, head_dim_of(fields), pairing="interleaved"),
        qkv_bias=fields.flag("attention_bias", False),
    )


FAMILY = decoder_family(
    "helium",
    "Helium",
    config,
    rotary_rules,
    answers=False,
    pad_token_id=3,
)
