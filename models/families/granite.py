"""Granite 3 (Granite Team 2024): LLaMA that scales embeddings, attention scores, sublayer results and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, paired_neighbours, rotary_settings
from models.families.shared.granite import granite_decoder, granite_gguf_settings
from models.families.shared.rotary_decoder import gated_feed_forward, rotary_rules
from weights.gguf.metadata import Metadata

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
    return granite_decoder(fields, gated_feed_forward(fields, bias=fields.flag("mlp_bias", False)))


def gguf_settings(of: Metadata) -> Settings:
    bias = has_bias(of, "ffn_up")
    return rotary_settings(of, model_type="granite", mlp_bias=bias, **granite_gguf_settings(of))


FAMILY = decoder_family(
    "granite",
    "Granite",
    config,
    rotary_rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"granite": gguf_settings}, rules=paired_neighbours),
)
