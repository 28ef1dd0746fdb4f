"""LLaMA 1 to 3 (Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.rotary_decoder import gated_feed_forward, rotary_rules, uniform_decoder

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    bias = fields.flag("attention_bias", False)
    feed_forward = gated_feed_forward(fields, bias=fields.flag("mlp_bias", False))
    return uniform_decoder(fields, feed_forward, qkv_bias=bias, output_bias=bias)


FAMILY = decoder_family(
    "llama",
    "Llama",
    config,
    rotary_rules,
)
